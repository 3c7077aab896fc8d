"""Hugging Face causal LMs by folder or hub name, and the map between the built-in Llama and LlamaForCausalLM.

`transformers` takes seconds to import: only the functions that build a model import it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trainer.errors import ConfigError
from trainer.models.sections import HuggingFaceSection, LlamaSection, RopeScaling

if TYPE_CHECKING:
    from torch import nn

Value = TypeVar("Value")


def build(section: HuggingFaceSection) -> nn.Module:
    """The model in float32 and training mode, without its generation cache. Raises ConfigError when it can't be had."""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()  # it reports its generation settings, once a rank
    logging.disable_progress_bar()
    config, name = read_config(section), section.huggingface
    missing: list[str] = []
    try:
        if section.weights == "random":
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        else:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                _place(name), config=config, dtype=torch.float32, output_loading_info=True
            )
            model, report = loaded
            missing = sorted(report["missing_keys"])
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        raise _explained(name, error, what="weights") from error
    if missing:  # transformers would go on with random ones
        raise ConfigError(
            f"model.huggingface: {name!r} lacks {len(missing)} of the model's weights, {missing[0]} among them; "
            "complete it, or set model.weights: random."
        )
    model.config.use_cache = False  # keys and values of past tokens serve generation only
    trained: nn.Module = model.train()  # from_pretrained leaves it in evaluation mode
    return trained


def read_config(section: HuggingFaceSection) -> Any:
    """transformers' configuration of the model, refused unless it is a causal LM's."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    name = section.huggingface
    try:
        config = AutoConfig.from_pretrained(_place(name))
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise _explained(name, error, what="config.json") from error
    known = CAUSAL.get(config.model_type)
    # BERT and others have a causal class too, but weights of another kind: the architecture tells.
    kinds = {known} if isinstance(known, str) else set(known or ())
    architectures = set(config.architectures or kinds)
    if not kinds & architectures or config.is_encoder_decoder:
        found = ", ".join(sorted(architectures)) or config.model_type
        raise ConfigError(f"model.huggingface: {name!r} is {found}, not a causal language model; choose one that is.")
    return config


def _place(name: str) -> str:
    """The folder that the name means, or the hub name as it is."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(f"model.huggingface: the folder {name} holds no config.json, so it is not a model's.")
        return str(folder)
    if folder.exists():
        raise ConfigError(f"model.huggingface: {name} is a file; give the folder that holds the model.")
    if name.startswith((".", "/", "~")) or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise ConfigError(f"model.huggingface: there is no folder {name}; correct the path, or give a hub name.")
    return name


def _explained(name: str, error: BaseException, *, what: str) -> ConfigError:
    """One sentence from transformers' many."""
    if isinstance(error, ConfigError):
        return error
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    kinds = {type(link).__name__ for link in chain}
    start = f"model.huggingface: {name!r}"
    if Path(name).expanduser().is_dir():
        reason = " ".join(str(error).split())[:300]
        return ConfigError(f"{start}: its {what} cannot be read ({reason}); complete the folder.")
    if "GatedRepoError" in kinds:
        return ConfigError(f"{start} is gated; accept its licence on the hub and set HF_TOKEN.")
    if "RepositoryNotFoundError" in kinds:
        return ConfigError(f"{start} is no folder here, and the hub has no such model; correct the name.")
    if "trust_remote_code" in str(error):
        return ConfigError(f"{start} needs code from the hub, which is never run; write it as a model.module.")
    if kinds & {"ConnectionError", "ConnectError", "LocalEntryNotFoundError", "OfflineModeIsEnabled", "OSError"}:
        return ConfigError(
            f"{start} is no folder here and its {what} cannot be had from the hub; "
            "check the name and the network, or download the model and give its folder."
        )
    return ConfigError(f"{start}: its {what} cannot be used ({' '.join(str(error).split())[:300]}).")


# The built-in Llama's names and LlamaForCausalLM's. Both rotate the pairs (i, i + half), so no weight is permuted.
_NAMES = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
}
_BLOCK_NAMES = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def to_huggingface(state: Mapping[str, Value]) -> dict[str, Value]:
    """The built-in Llama's state (tensors, or anything by the same names) under LlamaForCausalLM's names."""
    return {_renamed(name, _NAMES, _BLOCK_NAMES, "blocks", "model.layers"): value for name, value in state.items()}


def from_huggingface(state: Mapping[str, Value], section: LlamaSection) -> dict[str, Value]:
    """LlamaForCausalLM's state under the built-in Llama's names.

    The rotary tables that old files hold are left out, and so is a tied model's second copy of its embedding.
    """
    names = {theirs: ours for ours, theirs in _NAMES.items()}
    block_names = {theirs: ours for ours, theirs in _BLOCK_NAMES.items()}
    kept = {name: value for name, value in state.items() if not name.endswith("rotary_emb.inv_freq")}
    if section.tie_embeddings:
        kept.pop("lm_head.weight", None)
    return {_renamed(name, names, block_names, "model.layers", "blocks"): value for name, value in kept.items()}


def _renamed(name: str, names: dict[str, str], block_names: dict[str, str], old: str, new: str) -> str:
    module, _, leaf = name.rpartition(".")
    block = re.fullmatch(rf"{re.escape(old)}\.(\d+)\.(.+)", module)
    if leaf == "weight" and module in names:
        return f"{names[module]}.weight"
    if leaf == "weight" and block and block[2] in block_names:
        return f"{new}.{block[1]}.{block_names[block[2]]}.weight"
    raise ConfigError(f"weight {name!r} has no place in a Llama; this model can only be used as model.huggingface.")


def to_huggingface_config(section: LlamaSection, *, positions: int) -> dict[str, Any]:
    """What config.json says of the built-in Llama; `positions`: the longest sequence it was trained on."""
    rope: dict[str, Any] = {"rope_type": "default"}
    if section.rope_scaling is not None:
        rope = {
            "rope_type": "llama3",
            "factor": section.rope_scaling.factor,
            "low_freq_factor": section.rope_scaling.low_frequency_factor,
            "high_freq_factor": section.rope_scaling.high_frequency_factor,
            "original_max_position_embeddings": section.rope_scaling.original_length,
        }
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": section.vocabulary,
        "hidden_size": section.width,
        "intermediate_size": section.feed_forward,
        "num_hidden_layers": section.layers,
        "num_attention_heads": section.heads,
        "num_key_value_heads": section.kv_heads,
        "head_dim": section.width // section.heads,
        "hidden_act": "silu",
        "max_position_embeddings": positions,
        "rms_norm_eps": section.norm_eps,
        "rope_theta": section.rope_theta,
        "rope_parameters": {**rope, "rope_theta": section.rope_theta},  # where transformers 5 looks
        "tie_word_embeddings": section.tie_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def from_huggingface_config(config: Mapping[str, Any]) -> LlamaSection:
    """The section of the built-in Llama that a config.json describes. Raises ConfigError for what it can't do."""
    kind, heads, width = config.get("model_type"), int(config["num_attention_heads"]), int(config["hidden_size"])
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    wrong = [
        text
        for is_wrong, text in (
            (kind != "llama", f"model_type {kind!r}"),
            (config.get("attention_bias") or config.get("mlp_bias"), "biases"),
            (config.get("hidden_act", "silu") != "silu", f"hidden_act {config.get('hidden_act')!r}"),
            ((config.get("head_dim") or width // heads) * heads != width, f"head_dim {config.get('head_dim')}"),
            (rope_type not in ("default", "llama3"), f"rope_type {rope_type!r}"),
        )
        if is_wrong
    ]
    if wrong:
        raise ConfigError(f"the built-in Llama has no {' and no '.join(wrong)}; use the model as model.huggingface.")
    scaling = None
    if rope_type == "llama3":
        scaling = RopeScaling(
            factor=rope["factor"],
            low_frequency_factor=rope["low_freq_factor"],
            high_frequency_factor=rope["high_freq_factor"],
            original_length=rope["original_max_position_embeddings"],
        )
    return LlamaSection(
        layers=config["num_hidden_layers"],
        width=width,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        hidden=config["intermediate_size"],
        vocabulary=config["vocab_size"],
        rope_theta=rope.get("rope_theta", config.get("rope_theta", 10000.0)),
        rope_scaling=scaling,
        norm_eps=config.get("rms_norm_eps", 1e-6),
        tie_embeddings=config.get("tie_word_embeddings", False),
    )
