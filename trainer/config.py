"""The recipe's keys: what each may hold, and how they must fit together. Imports no torch."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from trainer.errors import ConfigError
from trainer.strategies import STRATEGIES, foreign_options

_OCTAL = re.compile(r"[+-]?0[0-9_]")


def _number(value: Any) -> float:
    """A finite number from a number or from text such as "1e-3" (see the loader in recipe_file.py)."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"must be a number, not {value!r}")
    if isinstance(value, str) and _OCTAL.match(value.strip()):
        raise ValueError(f"is {value!r}: a number that begins with 0 is octal to some readers; leave the 0 out")
    try:
        number = float(value)
    except ValueError:
        raise ValueError(f"must be a number, not {value!r}") from None
    except OverflowError:
        raise ValueError("is too large a number") from None
    if not math.isfinite(number):
        raise ValueError(f"must be a finite number, not {value!r}")
    return number


def _whole(value: Any) -> int:
    number = _number(value)
    if number != int(number):
        raise ValueError(f"must be a whole number, not {value!r}")
    try:
        return int(value)  # not through a float: a seed of 17 digits keeps all of them
    except ValueError:
        return int(number)  # "1e3"


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text, not {value!r}; quote it if it is meant as text")
    return value


Number = Annotated[float, BeforeValidator(_number)]
Whole = Annotated[int, BeforeValidator(_whole)]
Text = Annotated[str, BeforeValidator(_text)]
Name = Annotated[str, BeforeValidator(_text), Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
Positive = Annotated[int, BeforeValidator(_whole), Field(ge=1)]
Count = Annotated[int, BeforeValidator(_whole), Field(ge=0)]
Share = Annotated[float, BeforeValidator(_number), Field(ge=0, le=1)]
Beta = Annotated[float, BeforeValidator(_number), Field(ge=0, lt=1)]
AboveZero = Annotated[float, BeforeValidator(_number), Field(gt=0)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class ModelSection(Section):
    layers: Positive
    width: Positive
    heads: Positive
    kv_heads: Positive
    hidden: Positive | None = None  # width of the feed-forward part; default: 8/3 of the width, rounded up to 32
    vocabulary: Annotated[int, BeforeValidator(_whole), Field(ge=257)] = 257  # 256 bytes + the document separator
    rope_theta: AboveZero = 10000.0
    norm_eps: AboveZero = 1e-5

    @model_validator(mode="after")
    def _shapes(self) -> ModelSection:
        if self.width % (2 * self.heads):
            raise ValueError(f"width {self.width} must be a multiple of 2 × heads = {2 * self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads {self.kv_heads} must divide heads {self.heads}")
        return self

    @property
    def feed_forward(self) -> int:
        return self.hidden or -(-8 * self.width // 3 // 32) * 32


class DataSection(Section):
    source: Literal["stdlib", "path"] = "stdlib"
    path: Text | None = None
    sequence_length: Positive
    held_out_share: Annotated[float, BeforeValidator(_number), Field(gt=0, lt=1)] = 0.05
    limit_mib: AboveZero = 16.0  # read at most this much, in MiB

    @model_validator(mode="after")
    def _path(self) -> DataSection:
        if self.source == "path" and not self.path:
            raise ValueError("source 'path' needs the key data.path, a file or a folder")
        return self


class TrainingSection(Section):
    steps: Positive
    global_batch_size: Positive  # sequences per optimizer step, over all ranks
    micro_batch_size: Positive  # sequences per forward pass, per rank
    precision: Literal["float32", "bf16", "float64"] = "float32"
    clip_norm: AboveZero = 1.0
    log_every: Positive = 10
    evaluate_every: Positive = 100
    evaluation_batches: Positive = 4  # in global batches


class OptimizerSection(Section):
    learning_rate: AboveZero
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    weight_decay: Annotated[float, BeforeValidator(_number), Field(ge=0)] = 0.1
    eps: AboveZero = 1e-8


class ScheduleSection(Section):
    warmup_steps: Count = 0
    final_share: Share = 0.1  # of the peak learning rate, at the last step


def _zero_stage(value: Any) -> int:
    stage = _whole(value)
    if stage == 0:
        raise ValueError("0 shards nothing; use strategy.name ddp for that, or stage 1, 2 or 3")
    if stage not in (1, 2, 3):
        raise ValueError(f"must be 1, 2 or 3, not {value!r}")
    return stage


class StrategySection(Section):
    """A key left out (null) has the strategy's own default; one that the strategy doesn't know is refused."""

    name: Literal[STRATEGIES]  # type: ignore[valid-type]  # the registry is the one list of names
    activation_checkpointing: bool | None = None  # compute each block's activations again in the backward pass
    # fsdp, hsdp
    replicate: Positive | None = None  # hsdp: number of replicas; default: one a node
    reshard_after_forward: bool | None = None  # default true: false keeps the gathered parameters for the backward pass
    cpu_offload: bool | None = None  # parameters, gradients and optimizer state in host memory
    # deepspeed
    stage: Annotated[int, BeforeValidator(_zero_stage)] | None = None  # of ZeRO; default 2
    offload_optimizer: Literal["none", "cpu", "nvme"] | None = None
    offload_parameters: Literal["none", "cpu", "nvme"] | None = None
    nvme_path: Text | None = None  # folder on each node's own disk
    deepspeed_config: Text | None = None  # your own JSON: it may add to the recipe, not contradict it

    @model_validator(mode="after")
    def _options(self) -> StrategySection:
        foreign = foreign_options(self.name, self.model_dump(exclude_none=True))
        if foreign:
            raise ValueError(f"{', '.join(foreign)} has no meaning for strategy.name {self.name}; remove it")
        return self


class CheckpointSection(Section):
    every_steps: Positive = 100
    keep: Positive = 3


class Recipe(Section):
    experiment: Name
    output_dir: Text = ""
    resume: Literal["auto", "never"] = "auto"
    seed: Count = 0
    model: ModelSection
    data: DataSection
    training: TrainingSection
    optimizer: OptimizerSection
    schedule: ScheduleSection = ScheduleSection()
    strategy: StrategySection
    checkpoint: CheckpointSection = CheckpointSection()

    @property
    def output(self) -> Path:
        return Path(self.output_dir or f"runs/{self.experiment}")


def accumulation_steps(recipe: Recipe, world: int) -> int:
    """Micro-batches per rank and step, from global batch = micro-batch × accumulation × world size.

    Raises ConfigError naming the valid choices when that has no whole solution.
    """
    batch, micro = recipe.training.global_batch_size, recipe.training.micro_batch_size
    if batch % (micro * world) == 0:
        return batch // (micro * world)
    if batch % world:
        nearest = -(-batch // world) * world
        advice = f"set training.global_batch_size to a multiple of {world}, for example {nearest}"
    else:
        share = batch // world
        choices = ", ".join(str(n) for n in range(1, share + 1) if share % n == 0)
        advice = f"set training.micro_batch_size to one of {choices}"
    raise ConfigError(
        f"training.global_batch_size {batch} is not training.micro_batch_size {micro} × accumulation × "
        f"world size {world} for any whole accumulation; {advice}."
    )
