"""The models that a recipe may name: their shapes, their arithmetic, their blocks, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM, BertConfig, LlamaConfig, LlamaForCausalLM, T5Config

from tests.trainer.conftest import RECIPE
from trainer.config import Recipe
from trainer.distributed import processes
from trainer.errors import ConfigError
from trainer.loss import cross_entropy_sum
from trainer.models import huggingface
from trainer.models.blocks import block_names, checkpoint_activations
from trainer.models.build import build, build_shapes, check_fits
from trainer.models.flops import flops_per_token
from trainer.models.llama import Llama
from trainer.models.presets import PRESETS
from trainer.models.sections import LlamaSection
from trainer.recipe_file import load
from trainer.strategies.fsdp import fill

CPU = torch.device("cpu")
TINY = {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "vocabulary": 100}


def recipe(model: str, *overrides: str) -> Recipe:
    return load(RECIPE, [f"model={model}", *overrides])


# As published: exactly where the weights' index or the model's card counts them, else as the model's name says.
PUBLISHED = {
    "llama-1m": 1e6,
    "stories-15m": 15e6,
    "stories-42m": 42e6,
    "stories-110m": 110e6,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "tinyllama-1.1b": 1_100_048_384,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_the_published_number_of_parameters(name: str) -> None:
    model = build_shapes(recipe(f"{{preset: {name}}}")).model
    size = sum(weight.numel() for weight in model.parameters())
    published = PUBLISHED[name]
    assert size == published if isinstance(published, int) else round(size / 1e6) == published / 1e6


def test_keys_beside_a_preset_override_it_and_the_shape_is_what_is_recorded() -> None:
    section = recipe("{preset: llama-3.1-8b, layers: 2}").model
    assert isinstance(section, LlamaSection)
    assert (section.layers, section.width) == (2, 4096)
    recorded = section.model_dump(mode="json")
    assert "preset" not in recorded
    assert LlamaSection.model_validate(recorded).model_dump() == section.model_dump()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("{preset: llama-3.1-8}", "did you mean 'llama-3.1-8b'"),
        ("{huggingface: x, layers: 2}", "model.layers is an unknown key; known keys are huggingface, weights"),
        ("{module: x.py, optoins: {}}", "did you mean 'options'"),
        ("{huggingface: x, weights: no}", "model.weights must be 'pretrained' or 'random'"),
        ("{preset: llama-1m, rope_scaling: {factr: 2}}", "did you mean 'factor'"),
        ("llama", "must hold keys and values"),
    ],
)
def test_a_wrong_model_section_is_refused_with_its_key(model: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe(model)
    assert message in str(caught.value)
    assert "?." not in str(caught.value)


def test_float64_keeps_its_digits() -> None:
    model = Llama(LlamaSection(**TINY)).double()
    tokens = torch.randint(0, 100, (2, 16))
    logits = model(tokens)
    assert logits.dtype == torch.float64
    nudged = Llama(LlamaSection(**TINY)).double()
    nudged.load_state_dict({name: weight * (1 + 1e-12) for name, weight in model.state_dict().items()})
    assert 0 < (nudged(tokens) - logits).abs().max() < 1e-9  # float32 anywhere inside would give 0, or 1e-7


def test_the_same_seed_gives_the_same_weights_whatever_is_drawn_before() -> None:
    torch.manual_seed(3)
    first = Llama(LlamaSection(**TINY)).state_dict()
    torch.manual_seed(3)
    torch.rand(7)
    second = Llama(LlamaSection(**TINY)).state_dict()
    torch.manual_seed(4)
    third = Llama(LlamaSection(**TINY)).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["head.weight"], third["head.weight"])


def test_sharded_weights_made_without_memory_are_those_of_the_whole_model() -> None:
    torch.manual_seed(3)
    whole = Llama(LlamaSection(**TINY)).state_dict()
    with processes():
        with torch.device("meta"):
            model = Llama(LlamaSection(**TINY))
        mesh = init_device_mesh("cpu", (1,))
        for name in block_names(model):
            fully_shard(model.get_submodule(name), mesh=mesh)
        fully_shard(model, mesh=mesh)
        torch.manual_seed(3)
        fill(model, CPU)
        for name, weight in model.state_dict().items():
            assert torch.equal(weight.full_tensor(), whole[name]), name


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("scaling", [None, {"factor": 8.0, "original_length": 16}])
def test_the_built_in_llama_and_transformers_give_equal_logits(tied: bool, scaling: dict[str, float] | None) -> None:
    section = LlamaSection(**TINY, hidden=96, tie_embeddings=tied, rope_scaling=scaling)
    ours = Llama(section)
    with torch.no_grad():
        for weight in ours.parameters():
            weight.mul_(torch.empty_like(weight).uniform_(2, 6))  # so that every part has a visible effect
    config = LlamaConfig(**huggingface.to_huggingface_config(section, positions=64))
    theirs = LlamaForCausalLM(config)
    missing, unexpected = theirs.load_state_dict(huggingface.to_huggingface(ours.state_dict()), strict=False)
    assert not unexpected
    assert missing == (["lm_head.weight"] if tied else [])
    theirs.tie_weights()
    tokens = torch.randint(0, 100, (2, 48))
    expected = theirs(tokens).logits
    torch.testing.assert_close(ours(tokens), expected, rtol=1e-4, atol=1e-4 * float(expected.detach().abs().max()))
    back = huggingface.from_huggingface(theirs.state_dict(), section)
    assert {name: value.shape for name, value in back.items()} == {n: v.shape for n, v in ours.state_dict().items()}
    assert huggingface.from_huggingface_config(json.loads(config.to_json_string())) == section


def test_a_config_that_the_built_in_llama_cannot_do_is_refused() -> None:
    config = huggingface.to_huggingface_config(LlamaSection(**TINY), positions=64)
    with pytest.raises(ConfigError, match="model_type 'qwen2' and no biases"):
        huggingface.from_huggingface_config({**config, "model_type": "qwen2", "attention_bias": True})
    with pytest.raises(ConfigError, match=r"model\.layers\.0\.self_attn\.q_proj\.bias"):
        huggingface.from_huggingface({"model.layers.0.self_attn.q_proj.bias": 0}, LlamaSection(**TINY))


SMALL = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 8}


@pytest.mark.parametrize(
    ("kind", "options", "first"),
    [
        ("llama", SMALL, "model.layers.0"),
        ("gpt2", {"vocab_size": 100, "n_embd": 32, "n_layer": 3, "n_head": 4}, "transformer.h.0"),
        ("qwen2", SMALL, "model.layers.0"),
        ("qwen3", SMALL, "model.layers.0"),
        ("mistral", SMALL, "model.layers.0"),
        ("gemma", SMALL, "model.layers.0"),
        ("gemma2", SMALL, "model.layers.0"),
        ("mixtral", SMALL, "model.layers.0"),
        ("opt", {**SMALL, "ffn_dim": 64, "word_embed_proj_dim": 32}, "model.decoder.layers.0"),
    ],
)
def test_the_blocks_of_hugging_face_models_are_found_by_structure(kind: str, options: Any, first: str) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options))
    names = block_names(model)
    assert len(names) == 3
    assert names[0] == first


def test_the_blocks_of_other_models_are_found_by_structure() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

    shared = Layer()
    model = nn.ModuleDict(
        {
            "encoder": nn.Sequential(nn.Linear(4, 4), Layer(), Layer()),
            "decoder": nn.ModuleList([Layer(), nn.Identity(), Layer()]),
            "tied": nn.ModuleList([shared, Layer()]),
            "copy": nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)),
        }
    )
    model["head"] = nn.Linear(4, 4)
    model["head"].weight = shared.inner.weight
    assert block_names(model) == ["encoder.1", "encoder.2", "decoder.0", "decoder.2", "tied.1"]
    assert block_names(nn.Linear(4, 4)) == []


@pytest.mark.parametrize("kind", ["ours", "gpt2"])
def test_checkpointed_activations_change_memory_and_not_gradients(kind: str) -> None:
    def gradients(*, checkpointed: bool) -> tuple[dict[str, torch.Tensor], int]:
        torch.manual_seed(1)
        if kind == "ours":
            model: Any = Llama(LlamaSection(**TINY))
        else:
            config = AutoConfig.for_model("gpt2", vocab_size=100, n_embd=32, n_layer=3, n_head=4)
            model = AutoModelForCausalLM.from_config(config).train()  # with its dropout
        if checkpointed:
            checkpoint_activations(model, block_names(model))
        kept = 0

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal kept
            kept += tensor.nbytes
            return tensor

        tokens = torch.arange(32).reshape(2, 16)
        torch.manual_seed(2)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = model(tokens)
        cross_entropy_sum(output if isinstance(output, torch.Tensor) else output.logits, tokens).backward()
        return {name: weight.grad for name, weight in model.named_parameters()}, kept

    plain, much = gradients(checkpointed=False)
    recomputed, little = gradients(checkpointed=True)
    assert little < much / 2
    assert plain.keys() == recomputed.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(recomputed[name], gradient, rtol=1e-5, atol=1e-6)


def test_flops_per_token_are_those_that_torch_counts() -> None:
    for tied in (False, True):
        model = Llama(LlamaSection(**TINY, tie_embeddings=tied))
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros(2, 48, dtype=torch.int64))
        assert flops_per_token(model, 48) == 3 * counter.get_total_flops() / 96  # a backward pass is two forward passes
        for weight in model.parameters():
            weight.requires_grad_(False)
        weights = sum(w.numel() for w in model.parameters() if w.dim() >= 2) - (0 if tied else 100 * 64)
        assert flops_per_token(model, 48) == 4 * weights + 12 * 2 * 64 * 48


def test_flops_per_token_are_not_guessed() -> None:
    assert flops_per_token(nn.Linear(4, 4), 48) is None
    with torch.device("meta"):
        experts = AutoModelForCausalLM.from_config(AutoConfig.for_model("mixtral", **SMALL))
        dense = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SMALL))
    assert flops_per_token(experts, 48) is None
    assert flops_per_token(dense, 48) is not None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Hugging Face model on disk."""
    path = tmp_path_factory.mktemp("model")
    section = LlamaSection(**{**TINY, "vocabulary": 300})
    LlamaForCausalLM(LlamaConfig(**huggingface.to_huggingface_config(section, positions=64))).save_pretrained(path)
    return path


def test_a_hugging_face_model_comes_from_a_folder_with_or_without_its_weights(folder: Path) -> None:
    def model(weights: str) -> nn.Module:
        chosen = recipe(f"{{huggingface: {folder}, weights: {weights}}}")
        return build(chosen, CPU, code=None, deferred=False).model

    pretrained, again, random = model("pretrained"), model("pretrained"), model("random")
    name = "lm_head.weight"
    assert torch.equal(pretrained.get_parameter(name), again.get_parameter(name))
    assert not torch.equal(pretrained.get_parameter(name), random.get_parameter(name))
    assert torch.equal(model("random").get_parameter(name), random.get_parameter(name))  # the recipe's seed
    assert pretrained.training
    assert {weight.dtype for weight in pretrained.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("ids", "length", "message"),
    [(301, 32, "vocabulary of 300 is smaller than the 301 ids"), (257, 65, "longer than the 64 positions")],
)
def test_data_that_the_model_has_no_place_for_is_refused(folder: Path, ids: int, length: int, message: str) -> None:
    model = build_shapes(recipe(f"{{huggingface: {folder}, weights: random}}")).model
    check_fits(model, ids=300, length=64)
    with pytest.raises(ConfigError, match=message):
        check_fits(model, ids=ids, length=length)


def test_what_cannot_be_had_from_hugging_face_is_one_sentence(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # no network

    def refusal(name: str | Path) -> str:
        with pytest.raises(ConfigError) as caught:
            build(recipe(f"{{huggingface: {name}}}"), CPU, code=None, deferred=False)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "there is no folder ./models/absent" in refusal("./models/absent")
    assert "holds no config.json" in refusal(tmp_path)
    assert "check the name and the network" in refusal("nobody/no-such-model")
    (tmp_path / "config.json").write_text("{")
    assert "config.json cannot be read" in refusal(tmp_path)
    for config in (BertConfig(architectures=["BertForMaskedLM"]), T5Config()):
        config.save_pretrained(tmp_path)
        assert "not a causal language model" in refusal(tmp_path)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    assert "weights cannot be read" in refusal(tmp_path)
    weights = (folder / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    assert "weights cannot be" in refusal(tmp_path)


def test_weights_that_are_missing_from_a_folder_are_not_made_up(folder: Path, tmp_path: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(folder)
    state = {name: value for name, value in model.state_dict().items() if "layers.1.mlp.up" not in name}
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(ConfigError, match=r"lacks 1 of the model's weights, model\.layers\.1\.mlp\.up_proj\.weight"):
        build(recipe(f"{{huggingface: {tmp_path}}}"), CPU, code=None, deferred=False)
