"""The repeated blocks of a model: the units that are sharded, and whose activations can be computed again."""

from __future__ import annotations

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint


def blocks(model: nn.Module) -> list[nn.Module]:
    return list(model.get_submodule("blocks").children())


def recompute_activations(model: nn.Module) -> None:
    """Keeps only each block's input for the backward pass, which runs the block's forward again.

    Comes before compiling and before sharding. It replaces `forward` in place, so that no name of a parameter changes.
    """
    for block in blocks(model):
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
