"""DeepSpeed's settings, made from the recipe and the launched group; a user's own JSON is checked against both.

Every key that the run itself decides is written, so that no default of DeepSpeed's counts (its gradient_clipping, for
one, is 1.0 when absent). The JSON may repeat such a key with the same value, or say "auto"; another value is an error
that names both. All other keys pass through. Imports neither torch nor deepspeed.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer import strict_json
from trainer.config import Recipe, accumulation_steps
from trainer.errors import ConfigError

AUTO = "auto"
# The optimizer is the trainer's own: of its section only keys that can be compared are understood.
_OPTIMIZER_FREE = ("optimizer.params.torch_adam", "optimizer.params.fused", "optimizer.legacy_fusion")
_OFFLOADED = ("optimizer", "param")
# fmt: off
_TOP_LEVEL = (
    "activation_checkpointing", "aio", "amp", "autotuning", "bf16", "bfloat16", "checkpoint", "comet", "comms_logger",
    "communication_data_type", "compile", "compression_training", "csv_monitor", "curriculum_learning",
    "data_efficiency", "data_types", "dataloader_drop_last", "disable_allgather", "disable_python_gc", "dump_state",
    "eigenvalue", "elasticity", "expert_parallel", "flops_profiler", "fp16", "gradient_accumulation_steps",
    "gradient_allreduce_op", "gradient_clipping", "gradient_predivide_factor", "graph_harvesting", "hybrid_engine",
    "load_universal_checkpoint", "log_level", "managed_gradient_accumulation", "memory_breakdown", "nebula",
    "optimizer", "pipeline", "prescale_gradients", "progressive_layer_drop", "quantize_training", "scheduler",
    "seq_parallel_communication_data_type", "sparse_attention", "sparse_gradients", "steps_per_print",
    "tensor_parallel", "tensorboard", "timers", "torch_autocast", "train_batch_size", "train_micro_batch_size_per_gpu",
    "use_data_before_expert_parallelism", "vocabulary_size", "wall_clock_breakdown", "wandb", "weight_quantization",
    "zenflow", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "zero_optimization",
)
# fmt: on


@dataclass(frozen=True)
class Owned:
    """A key that the run decides: its value in DeepSpeed's terms, and where a user would change it."""

    value: Any
    source: str


@dataclass(frozen=True)
class Zero:
    """Where the model's states live. stage: 1 optimizer states sharded, 2 also gradients, 3 also parameters."""

    stage: int
    offload_optimizer: str  # none, cpu or nvme
    offload_parameters: str


def check(recipe: Recipe, world: int) -> None:
    """Raises ConfigError for what would be refused at the start on `world` ranks."""
    build(recipe, world)
    if recipe.training.compile and zero(recipe).stage == 3:
        raise ConfigError(
            "training.compile: ZeRO 3 takes parameters away in the middle of what would be compiled; remove the key, "
            "or choose ZeRO 1 or 2, or fsdp."
        )


def zero(recipe: Recipe) -> Zero:
    """What the recipe and the user's JSON say together; the recipe's keys win where they are given (build() refuses
    a contradiction); ZeRO 2 without offload when nobody says anything."""
    section = _section(_read(recipe.strategy.deepspeed_config), "zero_optimization")

    def device(key: str) -> str:
        return str(_unless_auto(_section(section, key).get("device"), "none"))

    strategy = recipe.strategy
    return Zero(
        stage=strategy.stage or _unless_auto(section.get("stage"), 2),
        offload_optimizer=strategy.offload_optimizer or device("offload_optimizer"),
        offload_parameters=strategy.offload_parameters or device("offload_param"),
    )


def build(recipe: Recipe, world: int) -> dict[str, Any]:
    """The dictionary for deepspeed.initialize. Raises ConfigError."""
    path = recipe.strategy.deepspeed_config
    user = dict(_leaves(_read(path)))
    problems = _misspelt(user, path)
    settings = zero(recipe)
    problems += _unusable(recipe, settings, path)
    owned = _owned(recipe, world, settings)
    sections = {key[:dot] for key in owned for dot, letter in enumerate(key) if letter == "."} | {"scheduler"}
    for key, value in user.items():
        if key in sections and value not in ({}, None):
            problems.append(f"{path}: {key} is {json.dumps(value)}, and must be an object of keys and values")
        elif key in owned and value != AUTO and not _same(value, owned[key].value):
            problems.append(
                f"{path}: {key} is {json.dumps(value)}, but {owned[key].source} makes it "
                f"{json.dumps(owned[key].value)}; change one of them, or write {json.dumps(AUTO)} in {path}"
            )
        elif key.startswith("optimizer.") and key not in owned and key not in _OPTIMIZER_FREE:
            problems.append(
                f"{path}: {key} is {json.dumps(value)}, but the optimizer is made from the recipe's section "
                "optimizer, which has no such key; remove it"
            )
        elif key.startswith("scheduler."):
            problems.append(
                f"{path}: {key} is {json.dumps(value)}, but the recipe's section schedule sets the learning rate; "
                "remove the section scheduler"
            )
    if problems:
        raise ConfigError("\n".join(f"{problem}." for problem in problems))
    merged = _defaults(precision=recipe.training.precision)
    # "auto" on a key that the run doesn't decide leaves DeepSpeed's own default
    merged.update({key: value for key, value in user.items() if value != AUTO})
    merged.update({key: item.value for key, item in owned.items()})
    # compared above, and nothing for DeepSpeed to do
    absent = ["bfloat16", "fp16", "amp", "torch_autocast", "elasticity", "optimizer", "scheduler"]
    absent += ["zero_optimization.offload_optimizer"] if settings.offload_optimizer == "none" else []
    absent += ["zero_optimization.offload_param"] if settings.offload_parameters == "none" else []
    prefixes = tuple(f"{name}." for name in absent)
    return _nested({key: value for key, value in merged.items() if not f"{key}.".startswith(prefixes)})


def _owned(recipe: Recipe, world: int, settings: Zero) -> dict[str, Owned]:
    training, optimizer = recipe.training, recipe.optimizer
    group = f"training.global_batch_size over {world} ranks"
    bf16 = Owned(training.precision == "bf16", f"training.precision {training.precision}")
    never = Owned(False, "this trainer, which has training.precision for it,")
    owned = {
        "train_batch_size": Owned(training.global_batch_size, "training.global_batch_size"),
        "train_micro_batch_size_per_gpu": Owned(training.micro_batch_size, "training.micro_batch_size"),
        "gradient_accumulation_steps": Owned(accumulation_steps(recipe, world), group),
        "managed_gradient_accumulation": Owned(True, "this trainer"),
        "gradient_clipping": Owned(training.clip_norm, "training.clip_norm"),
        "gradient_allreduce_op": Owned("mean", "this trainer, which scales the loss for a mean over ranks,"),
        "bf16.enabled": bf16,
        "bfloat16.enabled": bf16,
        "fp16.enabled": never,
        "amp.enabled": never,
        "torch_autocast.enabled": never,
        "elasticity.enabled": Owned(False, "the launcher, which restarts with another world size itself,"),
        "zero_force_ds_cpu_optimizer": Owned(False, "this trainer, whose optimizer is torch's fused AdamW,"),
        "optimizer.type": Owned("AdamW", "this trainer"),
        "optimizer.params.lr": Owned(optimizer.learning_rate, "optimizer.learning_rate"),
        "optimizer.params.betas": Owned(list(optimizer.betas), "optimizer.betas"),
        "optimizer.params.eps": Owned(optimizer.eps, "optimizer.eps"),
        "optimizer.params.weight_decay": Owned(optimizer.weight_decay, "optimizer.weight_decay"),
        "optimizer.params.adam_w_mode": Owned(True, "this trainer, whose optimizer is AdamW,"),
        "optimizer.params.bias_correction": Owned(True, "this trainer, whose optimizer is AdamW,"),
        "zero_optimization.stage": Owned(settings.stage, "strategy.stage"),
    }
    for name, device, option in (
        ("offload_optimizer", settings.offload_optimizer, "offload_optimizer"),
        ("offload_param", settings.offload_parameters, "offload_parameters"),
    ):
        here = f"zero_optimization.{name}"
        owned[f"{here}.device"] = Owned(device, f"strategy.{option}")
        if device == "nvme" and recipe.strategy.nvme_path is not None:
            owned[f"{here}.nvme_path"] = Owned(recipe.strategy.nvme_path, "strategy.nvme_path")
    if settings.offload_optimizer != "none":
        # part of the optimizer on the GPU would be a second optimizer, whose learning rate nobody sets
        owned["zero_optimization.offload_optimizer.ratio"] = Owned(1.0, "this trainer, which has one optimizer,")
    return owned


def _defaults(*, precision: str) -> dict[str, Any]:
    """What we prefer to DeepSpeed's defaults; the user's JSON wins over it."""
    defaults: dict[str, Any] = {
        "steps_per_print": None,
        "data_types.grad_accum_dtype": "fp32",
        "zero_optimization.reduce_scatter": True,
    }
    if precision == "bf16":
        defaults["communication_data_type"] = "fp32"  # sums over ranks keep their digits, as in our other strategies
        defaults["bf16.check_grad_overflow"] = True
    return defaults


def _unusable(recipe: Recipe, settings: Zero, path: str | None) -> list[str]:
    problems = []
    where = f"{path}: zero_optimization.stage" if recipe.strategy.stage is None and path else "strategy.stage"
    if settings.stage == 0:
        problems.append(f"{where} 0 shards nothing; use strategy.name ddp for that, or stage 1, 2 or 3")
    elif settings.stage not in (1, 2, 3) or isinstance(settings.stage, bool):
        problems.append(f"{where} must be 1, 2 or 3, not {json.dumps(settings.stage)}")
    for what, device in zip(_OFFLOADED, (settings.offload_optimizer, settings.offload_parameters), strict=True):
        if device not in ("none", "cpu", "nvme"):
            problems.append(f"{path}: zero_optimization.offload_{what}.device must be none, cpu or nvme, not {device}")
    if settings.offload_parameters != "none" and settings.stage != 3:
        problems.append(
            f"offload of parameters to {settings.offload_parameters} needs {where} 3, where parameters are sharded, "
            f"not {settings.stage}"
        )
    if settings.offload_optimizer == "nvme" and settings.stage != 3:
        problems.append(f"offload of the optimizer to nvme needs {where} 3, not {settings.stage}; use cpu, or stage 3")
    if recipe.training.precision == "float64":
        problems.append("training.precision float64 does not exist in DeepSpeed; use float32, or another strategy.name")
    if "nvme" in (settings.offload_optimizer, settings.offload_parameters):
        places = [_section(_section(_read(path), "zero_optimization"), f"offload_{what}") for what in _OFFLOADED]
        given = recipe.strategy.nvme_path or any(place.get("nvme_path") for place in places)
        if not given:
            problems.append("offload to nvme needs strategy.nvme_path, a folder on a local NVMe disk of each node")
    return problems


def _misspelt(user: dict[str, Any], path: str | None) -> list[str]:
    problems = []
    for name in dict.fromkeys(key.split(".")[0] for key in user):
        close = difflib.get_close_matches(name, _TOP_LEVEL, n=1, cutoff=0.8)
        if name not in _TOP_LEVEL:
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            problems.append(f"{path}: DeepSpeed knows no {name!r}{hint} and would ignore it; correct or remove it")
    return problems


def _read(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        values = strict_json.decode(Path(path).read_bytes().decode("utf-8-sig"), repeated=False)
    except OSError as error:
        raise ConfigError(f"strategy.deepspeed_config: cannot read {path}: {error.strerror}.") from None
    except ValueError as error:  # also what JSON and UTF-8 decoding raise
        raise ConfigError(f"strategy.deepspeed_config: {path} is not valid JSON: {error}.") from None
    if not isinstance(values, dict):
        raise ConfigError(f"strategy.deepspeed_config: {path} must hold a JSON object.")
    return values


def _section(values: dict[str, Any], key: str) -> dict[str, Any]:
    """Empty for what is no section: build() refuses that."""
    found = values.get(key)
    return found if isinstance(found, dict) else {}


def _leaves(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value; an empty section is a leaf too, and so is what isn't a section."""
    for key, value in values.items():
        name = prefix + key
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value


def _nested(leaves: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in leaves.items():
        *sections, last = key.split(".")
        here = result
        for section in sections:
            below = here.setdefault(section, {})
            if not isinstance(below, dict):  # an empty or null section, now with keys of ours
                below = here[section] = {}
            here = below
        here[last] = value
    return result


def _same(user: Any, ours: Any) -> bool:
    """Equal in JSON's terms: 8 is 8.0, but neither "8" nor true is 1."""
    if isinstance(user, bool) or isinstance(ours, bool):
        return user is ours
    return bool(user == ours)


def _unless_auto(value: Any, default: Any) -> Any:
    return default if value is None or value == AUTO else value
