"""How a model is spread over ranks: the only place that knows strategy names. The registry itself imports no torch.

A new strategy is one module with a class that follows `Strategy`, and one line in `_REGISTRY`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from trainer.config import Recipe
    from trainer.distributed import Processes

    MakeOptimizer = Callable[[Iterable[tuple[str, nn.Parameter]]], Optimizer]


@dataclass(frozen=True)
class _Entry:
    """where: module:class; options: keys of the recipe's section `strategy` that mean something to it beside those
    that all have; check: module:function(recipe, world) that raises ConfigError before torch is imported."""

    where: str
    options: frozenset[str] = frozenset()
    check: str = ""


_FSDP_OPTIONS = frozenset({"reshard_after_forward", "cpu_offload"})
_REGISTRY = {
    "single": _Entry("trainer.strategies.single:Single", check="trainer.strategies.worlds:check_single"),
    "ddp": _Entry("trainer.strategies.ddp:DDP"),
    "fsdp": _Entry("trainer.strategies.fsdp:FSDP", _FSDP_OPTIONS),
    "hsdp": _Entry(
        "trainer.strategies.fsdp:HSDP",
        _FSDP_OPTIONS | {"replicate"},
        check="trainer.strategies.worlds:check_replicas",
    ),
    "deepspeed": _Entry(
        "trainer.strategies.deepspeed:DeepSpeed",
        frozenset({"stage", "offload_optimizer", "offload_parameters", "nvme_path", "deepspeed_config"}),
        check="trainer.strategies.deepspeed_config:check",
    ),
}
STRATEGIES = tuple(_REGISTRY)
COMMON_OPTIONS = frozenset({"name"})


class Strategy(Protocol):
    """Gradients are averaged over ranks; the caller scales its loss accordingly, and nothing else scales it."""

    module: nn.Module
    optimizer: Optimizer
    shards_parameters: bool  # then `prepare` also takes a model on the meta device that has `initialise`

    def __init__(self, processes: Processes, recipe: Recipe) -> None: ...

    def prepare(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        """Spreads the model (already on its device), then makes the optimizer over what it became."""

    def backward(self, forward: Callable[[], Tensor], *, last: bool) -> Tensor:
        """Runs forward and backward of one micro-batch; ranks communicate gradients only in the last one, where the
        strategy has a choice."""

    def clip_and_step(self, clip_norm: float) -> float:
        """Global gradient norm before clipping; the optimizer steps unless that is not finite. Gradients are gone
        afterwards in both cases."""

    def discard_gradients(self) -> None:
        """In place of clip_and_step: the weights and the optimizer's state stay as they are."""

    def state(self) -> dict[str, Any]:
        """{"model": …, "optimizer": …} of tensors and plain values under the names of the plain model, whatever the
        strategy: so any strategy loads any other's. What is sharded is a DTensor. Called by all ranks."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes over what `state()` gave, on all ranks."""


def make_strategy(processes: Processes, recipe: Recipe) -> Strategy:
    check(recipe, processes.world)
    factory: type[Strategy] = _look_up(_REGISTRY[recipe.strategy.name].where)
    return factory(processes, recipe)


def check(recipe: Recipe, world: int) -> None:
    """Raises ConfigError for what a strategy would refuse at `world` ranks, as far as that is known without torch."""
    where = _REGISTRY[recipe.strategy.name].check
    if where:
        _look_up(where)(recipe, world)


def foreign_options(name: str, given: Iterable[str]) -> list[str]:
    """The given keys of the section `strategy` that mean nothing to strategy `name`."""
    return sorted(set(given) - COMMON_OPTIONS - _REGISTRY[name].options)


def _look_up(where: str) -> Any:
    module, _, attribute = where.partition(":")
    return getattr(importlib.import_module(module), attribute)
