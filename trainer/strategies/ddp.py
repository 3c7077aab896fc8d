"""Data parallel: a full copy of the model on each rank, gradients averaged while the backward pass runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainer.distributed import Processes
from trainer.errors import ConfigError
from trainer.strategies.torch_strategy import TorchStrategy

if TYPE_CHECKING:
    from trainer.config import Recipe
    from trainer.strategies import MakeOptimizer


class DDP(TorchStrategy):
    module: DistributedDataParallel

    def __init__(self, processes: Processes, recipe: Recipe) -> None:
        del recipe
        self._device = processes.device

    def prepare(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        device_ids = [self._device.index] if self._device.type == "cuda" else None
        self._adopt(DistributedDataParallel(model, device_ids=device_ids), make_optimizer(model.named_parameters()))

    def backward(self, forward: Callable[[], Tensor], *, last: bool) -> Tensor:
        # DDP decides during the forward pass whether this backward pass will communicate.
        with nullcontext() if last else self.module.no_sync():
            loss = forward()
            loss.backward()
        if last:
            self._check_gradients()
        return loss.detach()

    def _check_gradients(self) -> None:
        """Buckets are averaged when all of their gradients are there: with one missing, others stay this rank's own.

        Raises ConfigError, where torch would at the next step, after an update that differs between ranks.
        """
        weights = self.module.module.named_parameters()
        unused = [name for name, weight in weights if weight.requires_grad and weight.grad is None]
        if unused:
            raise ConfigError(
                f"strategy.name ddp: {len(unused)} parameters got no gradient, {unused[0]} first; use them in every "
                "step, freeze them, or choose another strategy."
            )
