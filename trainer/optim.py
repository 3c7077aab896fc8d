"""The optimizer and its learning rate."""

import math
from collections.abc import Iterable

from torch import nn
from torch.optim import AdamW, Optimizer

from trainer.config import OptimizerSection, Recipe


def make_optimizer(config: OptimizerSection, parameters: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
    """AdamW over what is trained; norms and other one-dimensional parameters don't decay."""
    weights = [weight for _, weight in parameters if weight.requires_grad]
    groups = [
        {"params": [weight for weight in weights if weight.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [weight for weight in weights if weight.dim() < 2], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=config.learning_rate, betas=config.betas, eps=config.eps, fused=True)


def learning_rate(recipe: Recipe, step: int) -> float:
    """For step 1 … steps: linear warm-up to the peak, then a cosine down to final_share of it at the last step."""
    peak, warmup = recipe.optimizer.learning_rate, recipe.schedule.warmup_steps
    if step <= warmup:
        return peak * step / warmup
    progress = min(1.0, (step - warmup) / max(1, recipe.training.steps - warmup))
    final = recipe.schedule.final_share
    return peak * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress)))


def set_learning_rate(optimizer: Optimizer, value: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = value
