"""What the strategies of torch itself share: one optimizer step, and state under the plain model's names."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from trainer.errors import ConfigError

if TYPE_CHECKING:
    from trainer.config import StrategySection


class TorchStrategy:
    """A module and its optimizer, both torch's own."""

    module: nn.Module
    optimizer: Optimizer
    shards_parameters = False

    def clip_and_step(self, clip_norm: float) -> float:
        total = torch.nn.utils.clip_grad_norm_(self.module.parameters(), clip_norm)
        norm = float(total.full_tensor() if isinstance(total, DTensor) else total)
        if math.isfinite(norm):
            self.optimizer.step()
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


def refuse_replicate(config: StrategySection) -> None:
    if config.replicate is not None:
        raise ConfigError("strategy.replicate has no meaning for this strategy.name; remove it.")
