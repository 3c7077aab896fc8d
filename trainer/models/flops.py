"""Floating-point operations of a model, for the utilisation of the hardware."""

from collections.abc import Iterable
from typing import Any

from torch import nn


def flops_per_token(model: nn.Module, sequence_length: int) -> float | None:
    """Of forward and backward pass, per token: 6 N + 12 L H Q T (PaLM, arXiv:2204.02311, appendix B).

    N: parameters that are multiplied with each token (an embedding table is only looked up); L: layers; H: heads;
    Q: width of a head; T: sequence length. What activation checkpointing computes again isn't counted. None when the
    model's attention isn't known. Called before a strategy shards the model.
    """
    blocks = getattr(model, "blocks", None)
    modules: Iterable[nn.Module] = blocks if isinstance(blocks, nn.ModuleList) else ()
    attentions: list[Any] = [getattr(block, "attention", None) for block in modules]
    if not attentions or not all(hasattr(attention, "head_width") for attention in attentions):
        return None
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    tied = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    multiplied = sum(weight.numel() for weight in model.parameters() if id(weight) not in embeddings - tied)
    widths = sum(int(each.heads) * int(each.head_width) for each in attentions)
    return 6.0 * multiplied + 12.0 * widths * sequence_length
