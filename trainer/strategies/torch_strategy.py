"""What the strategies of torch itself share: one optimizer step, and state under the plain model's names."""

from __future__ import annotations

import math
from typing import Any

from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from trainer.strategies.first_step import FirstStep, check_parameters


class TorchStrategy:
    """A module and its optimizer, both torch's own."""

    module: nn.Module
    optimizer: Optimizer
    shards_parameters = False
    _stepped = False

    def _adopt(self, module: nn.Module, optimizer: Optimizer) -> None:
        check_parameters(module, optimizer)
        self.module, self.optimizer = module, optimizer
        self._make_moments()

    def _make_moments(self) -> None:
        """All of them before the first step, as the optimizer would make them then.

        Left to themselves, parameters that get no gradient have none, and a checkpoint without them can't be loaded;
        and a state that is asked for before the first step is made by torch with a step of nothing, which counts.
        """
        get_optimizer_state_dict(self.module, self.optimizer, options=self._options())
        for moments in self.optimizer.state.values():
            moments["step"].zero_()

    def clip_and_step(self, clip_norm: float) -> float:
        total = get_total_norm(weight.grad for weight in self.module.parameters() if weight.grad is not None)
        if isinstance(total, DTensor):
            there = total.to(total.device_mesh.device_type)  # offloaded gradients are not where ranks can sum
            assert isinstance(there, DTensor)
            total = there.full_tensor()
        clip_grads_with_norm_(self.module.parameters(), clip_norm, total)
        norm = float(total)
        if math.isfinite(norm):
            first = None if self._stepped or not norm else FirstStep(self.module.parameters())
            self.optimizer.step()
            if first is not None:
                first.check(learning_rate=self.optimizer.param_groups[0]["lr"])
                self._stepped = True
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def discard_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Any]:
        # torch takes DDP's prefix and FSDP's sharding into account
        model, optimizer = get_state_dict(self.module, self.optimizer, options=self._options())
        return {"model": model, "optimizer": optimizer}

    def load_state(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.module,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=self._options(),
        )

    def _options(self) -> StateDictOptions:
        """Frozen parameters are the base model's, which the recipe names: they are neither saved nor loaded."""
        frozen = any(not weight.requires_grad for weight in self.module.parameters())
        return StateDictOptions(ignore_frozen_params=frozen, strict=not frozen)
