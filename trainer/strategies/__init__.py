"""How a model is spread over ranks: the only place that knows strategy names. The registry itself imports no torch.

A new strategy is one module with a class that follows `Strategy`, and one line in `_CLASSES`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from trainer.config import StrategySection
    from trainer.distributed import Processes

    MakeOptimizer = Callable[[Iterable[tuple[str, nn.Parameter]]], Optimizer]

_CLASSES = {
    "single": "trainer.strategies.single:Single",
    "ddp": "trainer.strategies.ddp:DDP",
    "fsdp": "trainer.strategies.fsdp:FSDP",
    "hsdp": "trainer.strategies.fsdp:HSDP",
}
STRATEGIES = tuple(_CLASSES)


class Strategy(Protocol):
    """Gradients are averaged over ranks; the caller scales its loss accordingly."""

    module: nn.Module
    optimizer: Optimizer
    shards_parameters: bool  # then `prepare` also takes a model on the meta device that has `initialise`

    def __init__(self, processes: Processes, config: StrategySection, *, precision: str) -> None: ...

    def prepare(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        """Spreads the model (already on its device), then makes the optimizer over what it became."""

    def backward(self, forward: Callable[[], Tensor], *, last: bool) -> Tensor:
        """Runs forward and backward of one micro-batch; ranks communicate gradients only in the last one."""

    def clip_and_step(self, clip_norm: float) -> float:
        """Global gradient norm before clipping; the optimizer steps unless that is not finite."""

    def discard_gradients(self) -> None:
        """In place of clip_and_step: the weights and the optimizer's state stay as they are."""

    def state(self) -> dict[str, Any]:
        """{"model": …, "optimizer": …} of tensors and plain values under the names of the plain model, whatever the
        strategy: so any strategy loads any other's. What is sharded is a DTensor. Called by all ranks."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes over what `state()` gave, on all ranks."""


def make_strategy(processes: Processes, config: StrategySection, *, precision: str) -> Strategy:
    module, _, attribute = _CLASSES[config.name].partition(":")
    factory: type[Strategy] = getattr(importlib.import_module(module), attribute)
    return factory(processes, config, precision=precision)
