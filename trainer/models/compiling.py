"""torch.compile for a model: fused kernels in place of one kernel for each operation, for a slower first step."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trainer.errors import ConfigError


def compile_forward(model: nn.Module, names: list[str], device: torch.device) -> None:
    """Compiles the forward pass (and its backward pass) of the named blocks, or of the whole model without names.

    Done before a strategy wraps the model. Forwards are replaced and modules are not, so names stay what they are, and
    what a strategy hooks around a block's call (gathering, casting) stays outside the compiled part. Blocks of one
    class are compiled once. It happens in the first forward pass of each kind (training, evaluation, other shapes).
    """
    _check_compiler(device)
    modules: list[Any] = [model.get_submodule(name) for name in names] or [model]
    for module in modules:
        module.forward = _compiled(module.forward)


def _compiled(forward: Callable[..., Any]) -> Callable[..., Any]:
    fast = torch.compile(forward)

    @functools.wraps(forward)  # its arguments are asked for: does it take `documents`?
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return fast(*arguments, **options)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = " ".join(str(error).split())[:300]
            raise ConfigError(f"training.compile: torch can't compile the model: {reason}; remove the key.") from error

    return call


def _check_compiler(device: torch.device) -> None:
    """torch finds out in the first step otherwise, and says it at length. Raises ConfigError."""
    # What torch takes on Linux: for CPU kernels C++, for what launches GPU kernels C.
    variable, usual = ("CXX", ("g++",)) if device.type == "cpu" else ("CC", ("gcc", "clang"))
    wanted = shlex.split(os.environ.get(variable, ""))[:1] or usual  # the variable may hold "ccache g++"
    if not any(shutil.which(name) for name in wanted):
        raise ConfigError(
            f"training.compile needs a compiler, and there is no {' or '.join(wanted)} on this node; "
            "install it (Debian: apt-get install g++), or remove the key."
        )
