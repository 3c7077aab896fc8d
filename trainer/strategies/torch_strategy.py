"""What the strategies of torch itself share: one optimizer step, and state under the plain model's names."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from trainer.strategies.first_step import FirstStep, check_parameters


class TorchStrategy:
    """A module and its optimizer, both torch's own."""

    module: nn.Module
    optimizer: Optimizer
    _stepped = False

    def _adopt(self, module: nn.Module, optimizer: Optimizer) -> None:
        check_parameters(module, optimizer)
        self.module, self.optimizer = module, optimizer

    def clip_and_step(self, clip_norm: float) -> float:
        total = torch.nn.utils.clip_grad_norm_(self.module.parameters(), clip_norm)
        norm = float(total.full_tensor() if isinstance(total, DTensor) else total)
        if math.isfinite(norm):
            first = None if self._stepped or not norm else FirstStep(self.module.parameters())
            self.optimizer.step()
            if first is not None:
                first.check(learning_rate=self.optimizer.param_groups[0]["lr"])
                self._stepped = True
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def state(self) -> dict[str, Any]:
        # torch takes DDP's prefix and FSDP's sharding into account
        model, optimizer = get_state_dict(self.module, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.module,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
