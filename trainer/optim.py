"""The optimizer and its learning rate."""

from collections.abc import Iterable

from torch import nn
from torch.optim import AdamW, Optimizer

from trainer.config import OptimizerSection


def make_optimizer(config: OptimizerSection, parameters: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
    """AdamW over what is trained; norms and other one-dimensional parameters don't decay."""
    weights = [weight for _, weight in parameters if weight.requires_grad]
    groups = [
        {"params": [weight for weight in weights if weight.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [weight for weight in weights if weight.dim() < 2], "weight_decay": 0.0},
    ]
    # An adapter trains matrices alone: DeepSpeed takes an empty group out, or looks for a weight in it.
    filled = [group for group in groups if group["params"]] or groups[:1]
    return AdamW(filled, lr=config.learning_rate, betas=config.betas, eps=config.eps, fused=True)


def set_learning_rate(optimizer: Optimizer, value: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = value
