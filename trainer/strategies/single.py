"""One process, no communication: the reference that every other strategy must agree with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor, nn

from trainer.distributed import Processes
from trainer.strategies.torch_strategy import TorchStrategy

if TYPE_CHECKING:
    from trainer.config import Recipe
    from trainer.strategies import MakeOptimizer


class Single(TorchStrategy):
    def __init__(self, processes: Processes, recipe: Recipe) -> None:
        del processes, recipe

    def prepare(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        self._adopt(model, make_optimizer(model.named_parameters()))

    def backward(self, forward: Callable[[], Tensor], *, last: bool) -> Tensor:
        del last
        loss = forward()
        loss.backward()
        return loss.detach()
