"""Mistakes that raise nothing by themselves, caught at the start: a run whose steps don't reach the model's weights.

An optimizer made before the model was sharded holds the old parameters: it steps, and nothing moves. Weights in half
precision round small steps away: some never move.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from trainer.errors import ConfigError

_PROBED = 64  # elements at the start of each weight
_WIDE = (torch.float32, torch.float64)


def check_parameters(module: nn.Module, optimizer: Optimizer) -> None:
    """Raises ConfigError unless the optimizer holds exactly the module's trainable parameters, of at least float32."""
    for name, weight in module.named_parameters():
        if weight.requires_grad and weight.dtype not in _WIDE:
            raise ConfigError(
                f"model: {name} is trained in {str(weight.dtype).removeprefix('torch.')}, where small steps are lost; "
                "make it float32: training.precision bf16 computes in bfloat16 by itself."
            )
    names = {id(weight): name for name, weight in module.named_parameters() if weight.requires_grad}
    held = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    forgotten = [name for key, name in names.items() if key not in held]
    if not names:
        raise ConfigError("model: it has no trainable parameter; unfreeze some.")
    if forgotten:
        raise ConfigError(f"optimizer: it leaves out {len(forgotten)} of the model's parameters, {forgotten[0]} first.")
    if held - set(names):
        raise ConfigError(
            f"optimizer: {len(held - set(names))} of its parameters are not trainable ones of the model; "
            "make it after the model took its final form."
        )


class FirstStep:
    """Made just before the first optimizer step, asked just after it."""

    def __init__(self, weights: Iterable[Tensor]) -> None:
        self._weights = [_local(weight) for weight in weights]
        self._before = self._probe()

    def check(self, *, learning_rate: float) -> None:
        """Raises ConfigError when no weight of this rank moved although there was a gradient."""
        before, after = self._before, self._probe()
        # A step far below the last digit of every weight rounds to none: then nothing can be said.
        visible = learning_rate > 1e-6 * float(before.abs().max()) if before.numel() else False
        if visible and torch.equal(before, after):
            raise ConfigError("optimizer: no weight moved in the first step; the optimizer doesn't hold the model's.")

    def _probe(self) -> Tensor:
        pieces = [weight.detach().flatten()[:_PROBED].double().cpu() for weight in self._weights]
        return torch.cat(pieces) if pieces else torch.zeros(0)


def _local(weight: Tensor) -> Tensor:
    return weight.to_local() if isinstance(weight, DTensor) else weight
