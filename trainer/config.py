"""The recipe's keys: what each may hold, and how they must fit together. Imports no torch.

The string under a key is its meaning, which `python -m trainer keys` prints.
"""

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
    Seconds,
    Section,
    Seed,
    Share,
    Text,
    Whole,
)
from trainer.models.sections import LlamaSection, ModelSection, ModuleSection
from trainer.strategies import STRATEGIES, foreign_options

BYTE_IDS = 257  # the bytes, and the separator of documents


class DataSection(Section):
    source: Literal["stdlib", "path", "shards", "jsonl", "module"] = "stdlib"
    """stdlib: Python's own sources as bytes; path: files as bytes; shards: what `prepare` wrote; jsonl: prompt and
    response pairs; module: build_data of the model's file."""
    path: Text | None = None
    """File or folder; for shards what `prepare` wrote, also s3:// or gs://; for jsonl a .jsonl file or a folder."""
    sequence_length: Positive
    """Tokens that the model reads at a time; longer pairs are cut. Not needed with data of your own (module)."""
    held_out_share: InnerShare = 0.05
    """Share of the documents that is never trained on and evaluated instead; for shards `prepare` has set it."""
    limit_mib: AboveZero = 16.0
    """stdlib and path: read at most this much, in MiB."""
    packing: Literal["stream", "documents"] = "stream"
    """A sequence is cut out of the stream of documents; with documents, attention stays within each of them."""
    cache_dir: Text | None = None
    """shards in object storage: where each node keeps them; default ~/.cache/trainstack/data."""
    cache_gib: AboveZero | None = None
    """… and how much of the disk they may take, in GiB; default: no limit."""
    tokenizer: Text = "bytes"
    """jsonl: bytes, a tokenizer.json, a folder with one or a hub name."""
    prompt_key: Text | None = "prompt"
    """jsonl: text before the response, which isn't trained on; null: there is none."""
    response_key: Text = "response"
    """jsonl: text that is trained on."""

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
    """Optimizer steps of the whole run, resumed parts included."""
    global_batch_size: Positive
    """Samples (sequences, pairs, images) of an optimizer step, over all ranks: what decides what is learnt."""
    micro_batch_size: Positive
    """Samples of a forward pass on one rank: what decides memory. The rest is accumulated."""
    precision: Literal["float32", "bf16", "float64"] = "float32"
    """bf16 computes in bfloat16 and keeps weights, moments and sums over ranks in float32."""
    activation_checkpointing: bool = False
    """Recompute each block's activations in the backward pass: less memory, about a third more computing."""
    compile: bool = False
    """torch.compile: faster steps, a slower first one; needs a C++ compiler (for a GPU, C) on every node."""
    clip_norm: AboveZero = 1.0
    """Gradients are scaled down to this global norm when theirs is larger."""
    log_every: Positive = 10
    """Steps between lines of the log and `window` events."""
    evaluate_every: Positive = 100
    """Steps between evaluations on the held-out part; the last step always has one."""
    evaluation_batches: Positive = 4
    """Length of an evaluation, in global batches."""


class OptimizerSection(Section):
    """AdamW. Norms and other one-dimensional parameters don't decay."""

    learning_rate: AboveZero
    """The peak; see schedule."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """Decay of the mean of the gradients and of their squares."""
    weight_decay: FromZero = 0.1
    """Decoupled: times the learning rate, taken off each weight."""
    eps: AboveZero = 1e-8
    """Added to the root of the second moment."""


class ScheduleSection(Section):
    kind: Literal["cosine", "linear", "constant", "warmup-stable-decay"] = "cosine"
    """Course of the learning rate after the warm-up."""
    warmup_steps: Count = 0
    """Steps in which it rises linearly to the peak."""
    final_share: Share = 0.1
    """Of the peak learning rate, at the last step; constant has no use for it."""
    decay_share: Share = 0.2
    """Of all steps, for the decay at the end of warmup-stable-decay."""


def _zero_stage(stage: int) -> int:
    if stage == 0:
        raise ValueError("0 shards nothing; use strategy.name ddp for that, or stage 1, 2 or 3")
    if stage not in (1, 2, 3):
        raise ValueError(f"must be 1, 2 or 3, not {stage}")
    return stage


class StrategySection(Section):
    """A key left out (null) has the strategy's own default; one that the strategy doesn't know is refused."""

    name: Literal[STRATEGIES]  # type: ignore[valid-type]  # the registry is the one list of names
    """How the model is spread over ranks; `strategy: fsdp` is short for `strategy: {name: fsdp}`."""
    replicate: Positive | None = None
    """hsdp: number of replicas; default: one a node."""
    reshard_after_forward: bool | None = None
    """fsdp, hsdp: default true; false keeps gathered parameters for the backward pass: less traffic, more memory."""
    cpu_offload: bool | None = None
    """fsdp, hsdp: parameters, gradients and optimizer state in host memory."""
    stage: Annotated[Whole, AfterValidator(_zero_stage)] | None = None
    """deepspeed: of ZeRO, 1, 2 or 3; default 2."""
    offload_optimizer: Literal["none", "cpu", "nvme"] | None = None
    """deepspeed: where optimizer state lives; nvme needs stage 3."""
    offload_parameters: Literal["none", "cpu", "nvme"] | None = None
    """deepspeed stage 3: where parameters live."""
    nvme_path: Text | None = None
    """deepspeed: folder on each node's own disk for an offload to nvme."""
    deepspeed_config: Text | None = None
    """deepspeed: your own JSON: it may add to the recipe, not contradict it."""

    @model_validator(mode="after")
    def _options(self) -> StrategySection:
        foreign = foreign_options(self.name, self.model_dump(exclude_none=True))
        if foreign:
            raise ValueError(f"{', '.join(foreign)} has no meaning for strategy.name {self.name}; remove it")
        return self


class CheckpointSection(Section):
    every_steps: Positive = 100
    """Steps between checkpoints; the last step always has one."""
    keep: Positive = 3
    """The newest so many are kept, and the one that the run was resumed from."""
    keep_every_steps: Positive | None = None
    """Those whose step is a multiple of this are kept too, for good."""
    keep_best: bool = False
    """The one with the lowest held-out loss is kept too."""
    location: Text | None = None
    """s3://bucket/prefix, gs://bucket/prefix or a folder of this run's own; default: in output_dir."""
    replicas: Literal["all", "one"] = "all"
    """On separate disks: all that a node's ranks hold, or each tensor once."""
    asynchronous: bool = True
    """Written while training goes on, from a copy in CPU memory."""
    initialise_from: Text | None = None
    """Folder of safetensors and config.json to start step 0 of the built-in model from."""


class WatchSection(Section):
    """Stopping, bad steps, hangs."""

    notice_file: Text | None = None
    """All ranks stop, with a checkpoint, when this file exists on any node (a spot notice)."""
    max_duration: Duration | None = None
    """Stop with a checkpoint that long after each start: 55m, 1h30m, 90s."""
    # Less than the 120 s of `fab stop`, to have the last word.
    grace_s: Seconds = 110.0
    """From the wish to stop to the complete checkpoint; then the process ends without it. torchrun by itself kills
    after 30 s: give it --shutdown-timeout (`fab train` does)."""
    on_bad_step: Literal["skip", "stop"] = "skip"
    """A loss or gradient that is no number, or a spike: leave the weights alone and go on, or end the run."""
    max_bad_steps: Positive = 10
    """So many in a row stop the run."""
    spike_factor: AboveZero | None = None
    """A loss is bad above median + this × deviation (robust) of the last 64 good ones; null: off."""
    stall_s: Seconds = 600.0
    """With nothing finished for so long the run ends; 3 times that for the start, the first step and saving."""


class ProfileSection(Section):
    steps: tuple[Positive, Positive] | None = None
    """First and last step to trace with torch.profiler, into <output_dir>/traces."""
    ranks: tuple[Count, ...] = (0,)
    """The ranks that write a trace."""

    @model_validator(mode="after")
    def _order(self) -> ProfileSection:
        if self.steps and self.steps[0] > self.steps[1]:
            raise ValueError(f"steps are the first and the last one: {self.steps[0]} is after {self.steps[1]}")
        return self


class MetricsSection(Section):
    sinks: tuple[Literal["jsonl", "tensorboard", "wandb", "mlflow", "prometheus"], ...] = ("jsonl", "tensorboard")
    """Where numbers go; wandb and mlflow take server and account from their own environment variables."""
    prometheus_file: Text | None = None
    """For node_exporter's textfile collector; default: metrics.prom in output_dir."""
    profile: ProfileSection = ProfileSection()


class Recipe(Section):
    experiment: Name
    """The run's name in metrics and in the default output_dir."""
    output_dir: Text = ""
    """Folder for checkpoints, metrics, traces and finished.json; default runs/<experiment>."""
    resume: Text = "auto"
    """auto: from this run's newest checkpoint; never: start afresh, older ones are set aside; or the checkpoint
    (folder or URL) to begin with."""
    seed: Seed = 0
    """Of the weights, the order of the data, and dropout."""
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

    @model_validator(mode="after")
    def _bytes_fit(self) -> Recipe:
        data, model = self.data, self.model
        in_bytes = data.source in ("stdlib", "path") or (data.source == "jsonl" and data.tokenizer == "bytes")
        if in_bytes and isinstance(model, LlamaSection) and model.vocabulary < BYTE_IDS:
            raise ValueError(
                f"model.vocabulary {model.vocabulary} is too small: data of bytes has {BYTE_IDS} ids, the separator "
                f"included; set model.vocabulary to at least {BYTE_IDS}, or use another tokenizer"
            )
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
    worlds = [n for n in range(1, batch // micro + 1) if batch % (micro * n) == 0]
    near = [*[n for n in worlds if n < world][-1:], *[n for n in worlds if n > world][:1]]
    ranks = f", or start {' or '.join(map(str, near))} ranks" if near else ""
    if batch % world:
        nearest = -(-batch // world) * world
        advice = f"set training.global_batch_size to a multiple of {world}, for example {nearest}"
    else:
        share = batch // world
        choices = ", ".join(str(n) for n in range(1, share + 1) if share % n == 0)
        advice = f"set training.micro_batch_size to one of {choices}"
    raise ConfigError(
        f"training.global_batch_size {batch} is not training.micro_batch_size {micro} × accumulation × "
        f"world size {world} for any whole accumulation; {advice}{ranks}."
    )
