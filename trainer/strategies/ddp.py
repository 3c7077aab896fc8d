"""Data parallel: a full copy of the model on each rank, gradients averaged while the backward pass runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from trainer.distributed import Processes
from trainer.strategies.single import refuse_replicate

if TYPE_CHECKING:
    from trainer.strategies import MakeOptimizer


class DDP:
    module: DistributedDataParallel
    optimizer: Optimizer

    def __init__(self, processes: Processes, *, replicate: int | None, bf16: bool) -> None:
        del bf16  # autocast in the loop; the copies stay float32
        refuse_replicate(replicate)
        self._device = processes.device

    def prepare(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        device_ids = [self._device.index] if self._device.type == "cuda" else None
        self.module = DistributedDataParallel(model, device_ids=device_ids)
        self.optimizer = make_optimizer(model.named_parameters())

    def backward(self, forward: Callable[[], Tensor], *, last: bool) -> Tensor:
        # DDP decides during the forward pass whether this backward pass will communicate.
        with nullcontext() if last else self.module.no_sync():
            loss = forward()
            loss.backward()
        return loss.detach()

    def clip_and_step(self, clip_norm: float) -> float:
        norm = float(torch.nn.utils.clip_grad_norm_(self.module.parameters(), clip_norm))
        if math.isfinite(norm):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm
