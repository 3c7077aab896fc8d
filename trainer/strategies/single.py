"""One process, no communication: the reference that every other strategy must agree with."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.distributed import Processes
from trainer.errors import ConfigError

if TYPE_CHECKING:
    from trainer.strategies import MakeOptimizer


class Single:
    module: nn.Module
    optimizer: Optimizer

    def __init__(self, processes: Processes, *, replicate: int | None, bf16: bool) -> None:
        del bf16  # autocast in the loop is all that one process needs
        if processes.world > 1:
            raise ConfigError(f"strategy.name 'single' takes one process, not {processes.world}; choose another one.")
        refuse_replicate(replicate)

    def prepare(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        self.module = model
        self.optimizer = make_optimizer(model.named_parameters())

    def backward(self, forward: Callable[[], Tensor], *, last: bool) -> Tensor:
        del last
        loss = forward()
        loss.backward()
        return loss.detach()

    def clip_and_step(self, clip_norm: float) -> float:
        norm = float(torch.nn.utils.clip_grad_norm_(self.module.parameters(), clip_norm))
        if math.isfinite(norm):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm


def refuse_replicate(replicate: int | None) -> None:
    if replicate is not None:
        raise ConfigError("strategy.replicate has no meaning for this strategy.name; remove it.")
