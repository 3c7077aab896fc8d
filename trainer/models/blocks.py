"""The repeated layers of any model, found by structure: what is sharded, recomputed or compiled one by one."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint


def block_names(model: nn.Module) -> list[str]:
    """Dotted names of the outermost repeated layers, in the model's order; empty when there are none.

    Repeated layers are the members of an nn.ModuleList that have parameters, and equal neighbours (two or more of one
    class, with layers of their own) in an nn.Sequential. A layer that shares a parameter with the rest of the model is
    left out, because such a parameter cannot be sharded with one of its owners alone.
    """
    # occurrences of each parameter by the modules that own it, ties counted twice
    owners = Counter(id(weight) for module in model.modules() for weight in module.parameters(recurse=False))
    found: list[str] = []

    def visit(module: nn.Module, prefix: str) -> None:
        repeated = _repeated(module)
        for name, child in module.named_children():
            dotted = f"{prefix}{name}"
            if name in repeated and _owns_its_parameters(child, owners):
                found.append(dotted)
            else:
                visit(child, f"{dotted}.")

    visit(model, "")
    return found


def _repeated(module: nn.Module) -> set[str]:
    children = {
        name: child
        for name, child in module.named_children()
        if not isinstance(child, (nn.ModuleList, nn.ModuleDict))  # these have no forward of their own
        and next(child.parameters(), None) is not None
    }
    if isinstance(module, nn.ModuleList):
        return set(children)
    if isinstance(module, nn.Sequential):
        classes = Counter(type(child) for child in children.values() if next(child.children(), None) is not None)
        return {name for name, child in children.items() if classes[type(child)] > 1}
    return set()


def _owns_its_parameters(module: nn.Module, owners: Counter[int]) -> bool:
    inside = Counter(id(weight) for part in module.modules() for weight in part.parameters(recurse=False))
    return all(owners[key] == count for key, count in inside.items())


def checkpoint_activations(model: nn.Module, names: list[str]) -> None:
    """Makes each named block keep only its input and recompute the rest in the backward pass.

    Done before a strategy wraps the model. The block's own forward is replaced, so names stay what they are, and what
    a strategy hooks around the call (gathering, casting) isn't repeated inside.
    """
    for name in names:
        block: Any = model.get_submodule(name)
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
