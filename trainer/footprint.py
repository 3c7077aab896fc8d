"""`python -m trainer footprint RECIPE`: memory per rank under every strategy, before anything is rented.

The model is built without memory, so a 70-billion-parameter recipe is answered on a laptop. What is counted, in bytes
per rank, with N parameters of which T are trained, and r micro-batches in a step:
- parameters, gradients: 4 N and 4 T (float32), divided as the strategy divides them, rounded up as torch rounds;
- optimizer: AdamW's two moments, 8 T, divided likewise. Division by strategy: Rajbhandari et al. 2020, "ZeRO"
  (arXiv:1910.02054), section 5; torch's fully_shard splits each parameter's first dimension;
- DeepSpeed in bf16: parameters in bf16 (2 N), float32 masters (4 T) beside the optimizer state, same paper;
- working: what the strategy holds beyond that. ddp: its buckets, once the gradients, and in bf16 autocast's copies of
  the weights. DeepSpeed 1 and 2: a bucket of 500 million elements (its reduce_bucket_size by default). Sharded
  parameters: those outside the repeated blocks and two blocks gathered (one in use, one fetched ahead), one block's
  gradients; and whole float32 gradients while a step has more than one micro-batch, unless they are sent each time;
- activations: what autograd saves in the recipe's own forward pass (trainer/models/activations.py), and the largest of
  it once more, for its gradient.
peak: everything at once, when a step has several micro-batches; else activations and gradients aren't there together.
Not counted, because nobody can know it beforehand: CUDA's context, NCCL's buffers, cuBLAS workspaces, fragmentation.
A tenth of the GPU is kept free for these.

Communication, in bytes that a rank sends in a step: a ring sends V (n-1)/n for a gathering or a reduce-scatter of V
bytes over n ranks and twice that for an all-reduce (Patarasu and Yuan 2009); ZeRO's section 7 says which happen.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer import recipe_file, strict_json
from trainer.config import Recipe
from trainer.errors import ConfigError, TrainerError
from trainer.strategies.layouts import Layout, layouts

if TYPE_CHECKING:
    from torch import nn

    from trainer.models.activations import Activations

GIB = 2**30
_FREE_SHARE = 0.1
_MOMENTS = 8  # bytes a parameter: two float32
_TOLERANCE = 1.5  # a simpler strategy is preferred up to this many times the least communication


@dataclass(frozen=True)
class Weight:
    """One parameter. rows: its first dimension, the one that is sharded; block: None outside the repeated layers."""

    numel: int
    rows: int
    trained: bool
    block: str | None

    def part(self, shards: int) -> int:
        """Elements on the rank that has most: rank 0, with whole rows."""
        rows = max(1, self.rows)
        return -(-rows // shards) * (self.numel // rows)


@dataclass(frozen=True)
class Footprint:
    """Bytes per rank on the GPU (or CPU, without one); `host` is what an offload puts into host memory instead."""

    strategy: str
    settings: dict[str, Any]
    parameters: int
    gradients: int
    optimizer: int
    working: int
    activations: int | None  # None: unknown
    peak: int | None
    host: int
    sent: int  # bytes that the rank sends in a step
    moved: int  # bytes between the rank's GPU and host memory in a step


def weights_of(model: nn.Module) -> list[Weight]:
    """The distinct parameters of a model, which may be on the meta device."""
    from trainer.models.blocks import block_names

    blocks = block_names(model)

    def block_of(name: str) -> str | None:
        return next((block for block in blocks if name.startswith(f"{block}.")), None)

    return [
        Weight(weight.numel(), weight.shape[0] if weight.dim() else 1, weight.requires_grad, block_of(name))
        for name, weight in model.named_parameters()
    ]


def predict(
    layout: Layout, weights: Sequence[Weight], activations: Activations | None, *, low: bool, micro_batches: int
) -> Footprint:
    """low: training in bf16. micro_batches: of a step, per rank."""
    item = 2 if low else 4  # of what computes; masters are float32
    trained = [weight for weight in weights if weight.trained]
    stored = 2 if layout.masters and low else 4
    parameters = stored * sum(weight.part(layout.parameters) for weight in weights)
    gradients = 4 * sum(weight.part(layout.gradients) for weight in trained)
    optimizer = _MOMENTS * sum(weight.part(layout.optimizer) for weight in trained)
    if layout.masters:  # DeepSpeed updates a flat float32 copy of its part, in float32 training too
        optimizer += 4 * sum(weight.part(layout.optimizer) for weight in trained)
    whole_gradients = 4 * sum(weight.numel for weight in trained)
    working = 0
    if layout.buckets:
        working = min(whole_gradients, layout.bucket_elements * item) if layout.bucket_elements else whole_gradients
    if layout.gathers:
        working += _gathered(weights, item)
        if micro_batches > 1 and not layout.reduces_always:
            working += whole_gradients
    elif low and activations is not None and not layout.masters:
        working += activations.weights
    sizes = {"parameters": parameters, "gradients": gradients, "optimizer": optimizer}
    host = sum(size for name, size in sizes.items() if name in layout.in_host)
    sizes = {name: 0 if name in layout.in_host else size for name, size in sizes.items()}
    active = peak = None
    if activations is not None:
        active = activations.kept + activations.largest
        # In a step of one micro-batch, activations go as gradients come: the larger of the two counts.
        together = max(active, sizes["gradients"]) if micro_batches == 1 else active + sizes["gradients"]
        peak = sizes["parameters"] + sizes["optimizer"] + working + together
    sent, moved = _traffic(layout, weights, item=item, micro_batches=micro_batches)
    return Footprint(
        layout.name,
        layout.settings,
        **sizes,
        working=working,
        activations=active,
        peak=peak,
        host=host,
        sent=sent,
        moved=moved,
    )


def _gathered(weights: Sequence[Weight], item: int) -> int:
    """Bytes of what is whole at one time: outside the blocks, two blocks, and the gradients of the largest."""
    sizes: dict[str | None, int] = {None: 0}
    for weight in weights:
        sizes[weight.block] = sizes.get(weight.block, 0) + weight.numel
    outside = sizes.pop(None)
    largest = max(sizes.values(), default=0)
    return item * (outside + min(2, len(sizes)) * largest) + 4 * (largest or outside)


def _traffic(layout: Layout, weights: Sequence[Weight], *, item: int, micro_batches: int) -> tuple[int, int]:
    """(sent, moved) of Footprint."""
    everything = sum(weight.numel for weight in weights)
    trained = sum(weight.numel for weight in weights if weight.trained)

    def ring(size: float, ranks: int) -> float:
        return size * (ranks - 1) / ranks

    shards = max(layout.parameters, layout.gradients, layout.optimizer)
    sent = 0.0
    reductions = micro_batches if layout.reduces_always else 1
    if layout.gathers:
        sent += 2 * micro_batches * ring(item * everything, layout.parameters)
        sent += reductions * ring(4 * trained, layout.gradients)
        sent += 2 * ring(4 * trained / layout.gradients, layout.replicas)
    elif layout.shares_updates:
        sent += reductions * ring(4 * trained, shards) + ring(item * trained, shards)
    else:
        sent += 2 * ring(4 * trained, layout.ranks)
    moved = 0.0
    if "optimizer" in layout.in_host:
        moved += (4 * reductions + item) * trained / shards
    if "parameters" in layout.in_host:
        moved += 2 * micro_batches * item * everything / shards
    return int(sent), int(moved)


def recommend(footprints: Sequence[Footprint], *, memory: float) -> tuple[Footprint | None, str]:
    """(what to run or None, why). memory: bytes of one GPU."""
    usable = memory * (1 - _FREE_SHARE)
    known = [one for one in footprints if one.peak is not None]
    fitting = [one for one in known if one.peak is not None and one.peak <= usable]
    if not known:
        return None, "the activations are unknown, so no strategy can be recommended"
    if not fitting:
        least = min(known, key=lambda one: one.peak or 0)
        return None, (
            f"none fits: {least.strategy} needs least, {_gib(least.peak)} GiB of {usable / GIB:.1f}; use more GPUs, "
            "training.activation_checkpointing, or a smaller training.micro_batch_size or data.sequence_length"
        )
    least_moved = min(one.moved for one in fitting)
    near = [one for one in fitting if one.moved == least_moved]
    least_sent = min(one.sent for one in near)
    choice = next(one for one in near if one.sent <= _TOLERANCE * least_sent)
    reason = f"peak {_gib(choice.peak)} GiB fits into {usable / GIB:.1f}, and it sends {_gib(choice.sent)} GiB a step"
    if choice.moved:
        reason += f" and moves {_gib(choice.moved)} GiB to and from host memory; nothing fits without an offload"
    elif choice.sent > least_sent:
        other = min(near, key=lambda one: one.sent)
        reason += f", near the least ({other.strategy}, {_gib(other.sent)} GiB) and simpler"
    else:
        reason += ", the least of those that fit"
    return choice, reason


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    recipe = recipe_file.load(options.recipe, options.set)
    measured = Measured(recipe)
    footprints, notes = measured.footprints(ranks=options.gpus, per_node=options.gpus_per_node)
    size = measured.parameters
    choice, reason = None, "give --gpu-memory to learn what fits"
    if options.gpu_memory is not None:
        choice, reason = recommend(footprints, memory=options.gpu_memory * GIB)
    if options.json:
        table = [asdict(one) for one in footprints]
        best = choice.settings if choice else None
        found = {"parameters": size, "footprints": table, "strategy": best, "reason": reason, "notes": notes}
        print(strict_json.encode(found))
        return 0
    print(f"{recipe.experiment}: {size:,} parameters on {options.gpus} GPUs, {options.gpus_per_node} a node")
    _print_table(footprints, memory=options.gpu_memory)
    for note in notes:
        print(f"note: {note}")
    print(f"run: {choice.strategy}: {reason}." if choice else f"{reason}.")
    return 0


class Measured:
    """One recipe's model, looked at once, for the footprints on any number of ranks. Raises ConfigError."""

    def __init__(self, recipe: Recipe) -> None:
        from trainer.models.build import build_shapes

        if recipe.training.precision not in ("float32", "bf16"):
            raise ConfigError(
                f"footprint predicts float32 and bf16, not training.precision {recipe.training.precision}."
            )
        self._recipe = recipe
        self.model = build_shapes(recipe).model
        self._weights = weights_of(self.model)
        self._unknown: list[str] = []
        self._activations = cache(self._measure)

    @property
    def parameters(self) -> int:
        return sum(weight.numel for weight in self._weights)

    def footprints(self, *, ranks: int, per_node: int) -> tuple[list[Footprint], list[str]]:
        """(one for each layout, what is unknown)."""
        training = self._recipe.training
        micro_batches = -(-training.global_batch_size // (training.micro_batch_size * ranks))
        notes = []
        if micro_batches * training.micro_batch_size * ranks != training.global_batch_size:
            notes.append(f"training.global_batch_size {training.global_batch_size} doesn't divide over {ranks} ranks")
        low = training.precision == "bf16"
        found = [
            predict(
                layout,
                self._weights,
                self._activations(low and (layout.gathers or layout.masters)),
                low=low,
                micro_batches=micro_batches,
            )
            for layout in layouts(ranks, per_node=per_node)
        ]
        return found, [*notes, *dict.fromkeys(self._unknown)]

    def _measure(self, cast: bool) -> Activations | None:
        from trainer.models.activations import measure

        try:
            return measure(self._recipe, cast=cast)
        except TrainerError as error:
            self._unknown.append(f"activations and peak are unknown: {error}")
            return None


def _print_table(footprints: Sequence[Footprint], *, memory: float | None) -> None:
    width = max(len(one.strategy) for one in footprints)
    columns = ("parameters", "gradients", "optimizer", "working", "activations", "peak", "host", "sent/step")
    print(f"{'GiB per rank':<{width}}  " + "  ".join(f"{name:>11}" for name in columns))
    for one in footprints:
        values = (
            one.parameters,
            one.gradients,
            one.optimizer,
            one.working,
            one.activations,
            one.peak,
            one.host,
            one.sent,
        )
        fits = ""
        if memory is not None and one.peak is not None:
            fits = "  fits" if one.peak <= memory * GIB * (1 - _FREE_SHARE) else "  too large"
        print(f"{one.strategy:<{width}}  " + "  ".join(f"{_gib(value):>11}" for value in values) + fits)


def _gib(size: float | None) -> str:
    return "unknown" if size is None else f"{size / GIB:.2f}" if size < 100 * GIB else f"{size / GIB:.0f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer footprint",
        description="Predicts the memory per rank of a recipe under every strategy, and recommends one.",
        epilog="example: python -m trainer footprint trainer/recipes/llama-1b.yaml --gpus 16 --gpu-memory 80",
        allow_abbrev=False,
    )
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="recipe file (YAML)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one recipe key")
    parser.add_argument("--gpus", type=_positive, default=1, metavar="N", help="ranks, one a GPU (default 1)")
    parser.add_argument("--gpus-per-node", type=_positive, default=8, metavar="N", help="default 8")
    parser.add_argument("--gpu-memory", type=_gibibytes, metavar="GIB", help="of one GPU: says what fits")
    parser.add_argument("--json", action="store_true", help="print one JSON object, in bytes")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, not {text!r}")
    return int(text)


def _gibibytes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"must be a number of GiB above 0, not {text!r}")
    return value
