"""DeepSpeed's ZeRO: optimizer states (1), also gradients (2), also parameters (3) divided over ranks, with offload.

The library is imported when this strategy is used, and only here. It builds nothing: the optimizer is torch's own.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.distributed import Processes
from trainer.errors import ConfigError
from trainer.strategies import deepspeed_config
from trainer.strategies.deepspeed_state import ZeroState
from trainer.strategies.first_step import FirstStep, check_parameters

if TYPE_CHECKING:
    from trainer.config import Recipe
    from trainer.strategies import MakeOptimizer


class DeepSpeed:
    module: nn.Module
    optimizer: Optimizer
    shards_parameters = False

    def __init__(self, processes: Processes, recipe: Recipe) -> None:
        self._processes = processes
        self._settings = deepspeed_config.build(recipe, processes.world)
        self._zero = deepspeed_config.zero(recipe)
        self._deepspeed = _import(processes)
        if "nvme" in (self._zero.offload_optimizer, self._zero.offload_parameters):
            _require_asynchronous_io()
        self._stepped = False

    def prepare(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        # Names and shapes first: stage 3 leaves empty parameters, and flat ones take their places in the groups.
        self.optimizer = make_optimizer(model.named_parameters())
        check_parameters(model, self.optimizer)
        shapes = {name: weight.shape for name, weight in model.named_parameters()}
        names = {id(weight): name for name, weight in model.named_parameters()}
        groups = [[names[id(weight)] for weight in group["params"]] for group in self.optimizer.param_groups]
        refusals = (importlib.import_module("deepspeed.runtime.config").DeepSpeedConfigError, ValidationError)
        try:
            with _quiet():
                self._engine, *_ = self._deepspeed.initialize(
                    model=model, optimizer=self.optimizer, config=self._settings, dist_init_required=False
                )
        except refusals as error:
            raise ConfigError(f"strategy: DeepSpeed refuses its settings: {_reason(error)}.") from error
        self.module = self._engine
        self._state = ZeroState(model, self.optimizer, self._engine.optimizer, self._processes, shapes, groups)

    def backward(self, forward: Callable[[], Tensor], *, last: bool) -> Tensor:
        self._engine.set_gradient_accumulation_boundary(last)
        loss = forward()
        # Our caller scales the loss; DeepSpeed would divide it by the accumulation steps once more.
        self._engine.backward(loss, scale_wrt_gas=False)
        return loss.detach()

    def clip_and_step(self, clip_norm: float) -> float:
        self._engine.optimizer.clip_grad = clip_norm
        first = None if self._stepped else FirstStep(self._state.fragments())
        self._engine.step()  # skips the update itself, on all ranks, when the norm isn't finite
        norm = float(self._engine.get_global_grad_norm())
        if first is not None and math.isfinite(norm) and norm:
            first.check(learning_rate=self.optimizer.param_groups[0]["lr"])
            self._stepped = True
        return norm

    def discard_gradients(self) -> None:
        # DeepSpeed has no such call, but it does exactly this when a norm isn't finite: so it is told of one.
        infinite = torch.tensor(math.inf, device=self._processes.device)
        name, norm = ("_get_norm_groups", [infinite]) if self._zero.stage == 3 else ("scaled_global_norm", infinite)
        setattr(self._engine.optimizer, name, lambda *_, **__: norm)
        try:
            self._engine.step()
        finally:
            delattr(self._engine.optimizer, name)

    def state(self) -> dict[str, Any]:
        return self._state.read()

    def load_state(self, state: dict[str, Any]) -> None:
        self._state.write(state)


def _import(processes: Processes) -> Any:
    """The library, told its device instead of guessing it, and kept from compiling anything."""
    os.environ["DS_ACCELERATOR"] = processes.device.type
    os.environ.setdefault("LOCAL_RANK", str(processes.local_rank))  # it insists, also without torchrun
    if "TORCH_EXTENSIONS_DIR" not in os.environ:  # a home folder may be read-only, or shared by different CPUs
        os.environ["TORCH_EXTENSIONS_DIR"] = str(Path(tempfile.gettempdir()) / f"torch-extensions-{os.getuid()}")
    with _quiet():
        library = importlib.import_module("deepspeed")
        operators = importlib.import_module("deepspeed.ops")
    # Shared memory instead of gloo between ranks on one CPU: it would need a compiler, and order its sums differently.
    operators.__compatible_ops__["deepspeed_shm_comm"] = False
    return library


def _reason(error: Exception) -> str:
    """Pydantic's errors without their headings and links; others as one line."""
    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
    return " ".join(str(error).split()).rstrip(".")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """DeepSpeed reports its set-up on standard output; warnings go to its logger, which stays."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def _require_asynchronous_io() -> None:
    builder = importlib.import_module("deepspeed.ops.op_builder").AsyncIOBuilder()
    if not builder.is_compatible(verbose=False):
        raise ConfigError(
            "strategy: offload to nvme needs libaio and its header on every node (Debian: apt-get install "
            "libaio-dev); install it, or offload to cpu."
        )
