"""How a model is spread over ranks: the only place that knows strategy names. The registry itself imports no torch.

A new strategy is one module with a class that follows `Strategy`, and one line in `_CLASSES`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

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

    def __init__(self, processes: Processes, *, replicate: int | None, bf16: bool) -> None: ...

    def prepare(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        """Spreads the model (already on its device), then makes the optimizer over what it became."""

    def backward(self, forward: Callable[[], Tensor], *, last: bool) -> Tensor:
        """Runs forward and backward of one micro-batch; ranks communicate gradients only in the last one."""

    def clip_and_step(self, clip_norm: float) -> float:
        """Global gradient norm before clipping; the optimizer steps unless that is not finite."""


def make_strategy(name: str, processes: Processes, *, replicate: int | None, bf16: bool) -> Strategy:
    module, _, attribute = _CLASSES[name].partition(":")
    factory: type[Strategy] = getattr(importlib.import_module(module), attribute)
    return factory(processes, replicate=replicate, bf16=bf16)
