"""The recipe's keys: what each may hold, and how they must fit together. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, model_validator

from trainer.errors import ConfigError
from trainer.fields import (
    AboveZero,
    Beta,
    Count,
    Duration,
    FromZero,
    InnerShare,
    Name,
    Positive,
    Section,
    Share,
    Text,
    Whole,
)
from trainer.models.sections import ModelSection, ModuleSection
from trainer.strategies import STRATEGIES, foreign_options


class DataSection(Section):
    source: Literal["stdlib", "path", "shards", "jsonl", "module"] = "stdlib"  # module: build_data of the model's file
    path: Text | None = None  # file or folder; for shards what `prepare` wrote, also s3:// or gs://
    sequence_length: Positive
    held_out_share: InnerShare = 0.05  # shards: set by `prepare`
    limit_mib: AboveZero = 16.0  # stdlib and path: read at most this much, in MiB
    packing: Literal["stream", "documents"] = "stream"  # documents: attention stays within a document
    cache_dir: Text | None = None  # shards in object storage: where they are kept on each node; default ~/.cache
    cache_gib: AboveZero | None = None  # … and how much of the disk they may take, in GiB; default: no limit
    tokenizer: Text = "bytes"  # jsonl: bytes, a tokenizer.json, a folder or a hub name
    prompt_key: Text | None = "prompt"  # jsonl: text before the response, which isn't trained on; null: there is none
    response_key: Text = "response"  # jsonl: text that is trained on

    @model_validator(mode="before")
    @classmethod
    def _without_sequences(cls, values: Any) -> Any:
        """Data of the user's own making need not be sequences."""
        own = isinstance(values, dict) and values.get("source") == "module"
        return {"sequence_length": 1, **values} if own else values

    @model_validator(mode="after")
    def _keys(self) -> DataSection:
        if self.source not in ("stdlib", "module") and not self.path:
            raise ValueError(f"source {self.source!r} needs the key data.path, a file or a folder")
        if self.source == "jsonl" and self.packing == "documents":
            raise ValueError("packing 'documents' is for streams of documents; source 'jsonl' never packs")
        return self


class TrainingSection(Section):
    steps: Positive
    global_batch_size: Positive  # sequences per optimizer step, over all ranks
    micro_batch_size: Positive  # sequences per forward pass, per rank
    precision: Literal["float32", "bf16", "float64"] = "float32"
    activation_checkpointing: bool = False  # recompute each block's activations in the backward pass: less memory
    clip_norm: AboveZero = 1.0
    log_every: Positive = 10
    evaluate_every: Positive = 100
    evaluation_batches: Positive = 4  # in global batches


class OptimizerSection(Section):
    learning_rate: AboveZero
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    weight_decay: FromZero = 0.1
    eps: AboveZero = 1e-8


class ScheduleSection(Section):
    kind: Literal["cosine", "linear", "constant", "warmup-stable-decay"] = "cosine"
    warmup_steps: Count = 0
    final_share: Share = 0.1  # of the peak learning rate, at the last step; constant has no use for it
    decay_share: Share = 0.2  # of all steps, for the decay at the end of warmup-stable-decay


def _zero_stage(stage: int) -> int:
    if stage == 0:
        raise ValueError("0 shards nothing; use strategy.name ddp for that, or stage 1, 2 or 3")
    if stage not in (1, 2, 3):
        raise ValueError(f"must be 1, 2 or 3, not {stage}")
    return stage


class StrategySection(Section):
    """A key left out (null) has the strategy's own default; one that the strategy doesn't know is refused."""

    name: Literal[STRATEGIES]  # type: ignore[valid-type]  # the registry is the one list of names
    # fsdp, hsdp
    replicate: Positive | None = None  # hsdp: number of replicas; default: one a node
    reshard_after_forward: bool | None = None  # default true: false keeps the gathered parameters for the backward pass
    cpu_offload: bool | None = None  # parameters, gradients and optimizer state in host memory
    # deepspeed
    stage: Annotated[Whole, AfterValidator(_zero_stage)] | None = None  # of ZeRO; default 2
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
    keep: Positive = 3  # the newest ones
    keep_every_steps: Positive | None = None  # and those whose step is a multiple of this, for good
    keep_best: bool = False  # and the one with the lowest held-out loss
    location: Text | None = None  # s3://bucket/prefix, gs://… or a folder of this run's own; default: in output_dir
    replicas: Literal["all", "one"] = "all"  # on separate disks: all that a node's ranks hold, or each tensor once
    asynchronous: bool = True  # written while training goes on, from a copy in CPU memory
    initialise_from: Text | None = None  # folder of safetensors and config.json to start step 0 from


class WatchSection(Section):
    """Stopping, bad steps, hangs."""

    notice_file: Text | None = None  # all ranks stop, with a checkpoint, when this exists on any node (spot notice)
    max_duration: Duration | None = None  # e.g. 55m: stop with a checkpoint that long after each start
    # From the wish to stop to the complete checkpoint; then the process ends without it. Less than the 120 s of `fab
    # stop`, to have the last word; torchrun by itself kills after 30 s: give it --shutdown-timeout.
    grace_s: AboveZero = 110.0
    on_bad_step: Literal["skip", "stop"] = "skip"  # loss or gradient that is no number, or a spike
    max_bad_steps: Positive = 10  # so many in a row stop the run
    spike_factor: AboveZero | None = None  # bad above median + this × deviation (robust) of recent losses; null: off
    stall_s: AboveZero = 600.0  # with nothing finished, then the run ends; 3 times that for start, first step, saving


class ProfileSection(Section):
    steps: tuple[Positive, Positive] | None = None  # first and last step to trace
    ranks: tuple[Count, ...] = (0,)

    @model_validator(mode="after")
    def _order(self) -> ProfileSection:
        if self.steps and self.steps[0] > self.steps[1]:
            raise ValueError(f"steps are the first and the last one: {self.steps[0]} is after {self.steps[1]}")
        return self


class MetricsSection(Section):
    sinks: tuple[Literal["jsonl", "tensorboard", "wandb", "mlflow", "prometheus"], ...] = ("jsonl", "tensorboard")
    prometheus_file: Text | None = None  # for node_exporter's textfile collector; default: metrics.prom in output_dir
    profile: ProfileSection = ProfileSection()


class Recipe(Section):
    experiment: Name
    output_dir: Text = ""
    resume: Text = "auto"  # "auto", "never", or the checkpoint (folder or URL) to begin with
    seed: Count = 0
    model: ModelSection
    data: DataSection
    training: TrainingSection
    optimizer: OptimizerSection
    schedule: ScheduleSection = ScheduleSection()
    strategy: StrategySection
    checkpoint: CheckpointSection = CheckpointSection()
    watch: WatchSection = WatchSection()
    metrics: MetricsSection = MetricsSection()

    @model_validator(mode="after")
    def _own_data(self) -> Recipe:
        if self.data.source == "module" and not isinstance(self.model, ModuleSection):
            raise ValueError("data.source 'module' means the file of model.module, which is missing; add it")
        return self

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
