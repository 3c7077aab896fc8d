"""The trainer with a fault built in: what a rank of `ranks.outcomes(2, faulty.trainer, fault, …)` does.

Under torchrun: python -m tests.trainer.faulty FAULT RECIPE --set …
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import torch
from torch import Tensor

from tests.trainer import ranks
from tests.trainer.checkpoint_jobs import full
from tests.trainer.conftest import RECIPE
from trainer import distributed, train
from trainer.__main__ import main
from trainer.checkpoint import Checkpoints
from trainer.checkpoint.folder import Folder
from trainer.errors import DataError
from trainer.models.llama import Llama
from trainer.strategies.ddp import DDP
from trainer.strategies.fsdp import FSDP
from trainer.watch.watchdog import DATA, SAVE, Watchdog

_place: dict[str, Any] = {}


def rank() -> int:
    return int(os.environ["RANK"])


def after(owner: Any, method: str, action: Callable[..., Any]) -> Any:
    """`action(result, self, *arguments)` takes the method's result and gives the one that the caller sees.

    owner: a class; or a module, whose functions have a first argument in the place of self.
    """
    original = getattr(owner, method)

    def wrapped(self: Any, *arguments: Any, **options: Any) -> Any:
        return action(original(self, *arguments, **options), self, *arguments)

    return mock.patch.object(owner, method, wrapped)


def weights(module: torch.nn.Module) -> list[Tensor]:
    """Copies of what this rank holds."""
    with torch.no_grad():
        return [getattr(weight, "_local_tensor", weight).clone() for weight in module.parameters()]


def poison(*, steps: set[int], loss_too: bool) -> Callable[..., Tensor]:
    """Rank 1's gradients, and perhaps its loss, are NaN in the given steps; rank 0's own ones are good."""

    def action(loss: Tensor, strategy: Any, *_: Any) -> Tensor:
        if _place.get("step") in steps and "before" not in _place:
            _place["module"], _place["before"] = strategy.module, weights(strategy.module)
        if rank() == 1 and _place["step"] in steps:
            for weight in strategy.module.parameters():
                if weight.grad is not None:
                    weight.grad.mul_(float("nan"))
            return loss * float("nan") if loss_too else loss
        return loss

    return action


def keep_strategy(strategy: Any, *_: Any) -> Any:
    _place["strategy"] = strategy
    return strategy


def bad_in_three_ways(logits: Tensor, *_: Any) -> Tensor:
    """On rank 1 alone: a NaN loss in step 3, infinite gradients of a finite loss in step 5, a spike in step 20."""
    step = _place["step"] if rank() == 1 and torch.is_grad_enabled() else None
    if step == 5:
        logits.register_hook(lambda gradient: gradient * float("inf"))
    return logits * {3: float("nan"), 20: 50.0}.get(step, 1.0)


def compare_states(result: None, watchdog: Watchdog, phase: str, step: int) -> None:
    """Model and optimizer before and after each of those steps, whole, in whatever way they are sharded."""
    del result, watchdog
    if phase == DATA and step in (3, 5, 20):
        _place["state"] = full(_place["strategy"].state())
    elif phase == DATA and "state" in _place:
        before, now = _place.pop("state"), full(_place["strategy"].state())
        same = before.keys() == now.keys() and all(torch.equal(before[name], now[name]) for name in now)
        print(f"state after step {step - 1}: {'unchanged' if same else 'changed'}", flush=True)


def notice(result: None, watchdog: Watchdog, phase: str, step: int) -> None:
    """The file appears in the second step, on a path that only rank 1 looks at."""
    del result, watchdog, phase
    if rank() == 1 and step == 2:
        _place["notice file"].touch()


def stop_in_evaluation(result: Tensor, *_: Any) -> Tensor:
    if rank() == 1 and not torch.is_grad_enabled():
        os.kill(os.getpid(), signal.SIGTERM)
    return result


def stop_twice(result: Any, *_: Any) -> Any:
    """In the save that a signal asked for, and after it."""
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    return result


def stop_in_step_three(result: None, watchdog: Watchdog, phase: str, step: int) -> None:
    del result, watchdog
    if step == 3 and phase == DATA and rank() == 0:
        os.kill(os.getpid(), signal.SIGTERM)


def killed(result: None, watchdog: Watchdog, phase: str, step: int) -> None:
    del result, watchdog
    if rank() == 1 and step == 3 and phase == DATA:
        os.kill(os.getpid(), signal.SIGKILL)


def asleep(result: None, watchdog: Watchdog, phase: str, step: int) -> None:
    del result, watchdog
    if rank() == 1 and step == 3 and phase == DATA:
        threading.Event().wait()


def suspended(result: None, watchdog: Watchdog, phase: str, step: int) -> None:
    del result, watchdog
    if rank() == 1 and step == 3 and phase == DATA:
        os.kill(os.getpid(), signal.SIGSTOP)


def remember_step(result: None, watchdog: Watchdog, phase: str, step: int) -> None:
    del result, watchdog
    _place["step"] = step
    if phase == DATA and step == 4 and "before" in _place:
        before, now = _place.pop("before"), weights(_place.pop("module"))
        same = all(torch.equal(old, new) and bool(new.isfinite().all()) for old, new in zip(before, now, strict=True))
        print(f"weights after the bad step: {'unchanged' if same else 'changed'}", flush=True)


def slow_save(result: None, watchdog: Watchdog, phase: str, step: int) -> None:
    del result, watchdog, step
    if phase == SAVE:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait()


def stuck_save(result: Any, place: Folder, step: int, *_: Any) -> Any:
    """In the save of step 10, this rank's file is written and nothing more; only where the environment says so."""
    del place
    if step == 10 and "STUCK_SAVE" in os.environ:
        Path(os.environ["STUCK_SAVE"]).touch()
        threading.Event().wait()
    return result


def alone(result: None, watchdog: Watchdog, phase: str, step: int) -> None:
    """A rank without others works up to step 12, and waits there for torchrun to end it."""
    del result, watchdog
    if step == 12 and phase == DATA and os.environ["WORLD_SIZE"] == "1":
        Path(os.environ["ALONE"]).touch()
        signal.pause()


def another_end_each_start(result: None, watchdog: Watchdog, phase: str, step: int) -> None:
    """Rank 1 fails in the first start, rank 0 in the second, rank 1 is asked to stop in the third."""
    del result, watchdog
    if step == 3 and phase == DATA:
        match os.environ["TORCHELASTIC_RESTART_COUNT"], rank():
            case ("0", 1) | ("1", 0):
                raise DataError(f"the disk of rank {rank()} is gone.")
            case ("2", 1):
                os.kill(os.getpid(), signal.SIGTERM)


def wait_for_the_agent_s_end(result: torch.device, *_: Any) -> torch.device:
    """Before the first word with the others."""
    agent = os.getppid()
    Path(os.environ["BEFORE_JOINING"], str(rank())).touch()
    while os.getppid() == agent:
        time.sleep(0.02)
    return result


FAULTS: dict[str, list[tuple[Any, str, Callable[..., Any]]]] = {
    "none": [],
    "bad in three ways": [
        (train, "make_strategy", keep_strategy),
        (Watchdog, "at", compare_states),
        (Llama, "forward", bad_in_three_ways),
    ],
    "bad loss": [(DDP, "backward", poison(steps={3}, loss_too=True))],
    "bad gradients": [(FSDP, "backward", poison(steps={3}, loss_too=False))],
    "always bad": [(DDP, "backward", poison(steps=set(range(3, 1000)), loss_too=True))],
    "notice": [(Watchdog, "at", notice)],
    "stop in evaluation": [(Llama, "forward", stop_in_evaluation)],
    "two signals": [(Watchdog, "at", stop_in_step_three), (Checkpoints, "save", stop_twice)],
    "killed": [(Watchdog, "at", killed)],
    "asleep in data": [(Watchdog, "at", asleep)],
    "suspended": [(Watchdog, "at", suspended)],
    "slow save": [(Watchdog, "at", slow_save)],
    "agent ends before joining": [(distributed, "_device", wait_for_the_agent_s_end)],
    "another end each start": [(Watchdog, "at", another_end_each_start)],
    "stuck save, then alone": [(Folder, "put", stuck_save), (Watchdog, "at", alone)],
}


def trainer(fault: str, output: Path, *overrides: str, notice_file: Path | None = None) -> NoReturn:
    """Ends with the trainer's exit code. notice_file: only rank 1 is told of it."""
    mine = [f"output_dir={output}", *overrides]
    if notice_file and rank() == 1:
        _place["notice file"] = notice_file
        mine.append(f"watch.notice_file={notice_file}")
    after(Watchdog, "at", remember_step).start()
    build_in(fault)
    ranks.trainer(RECIPE, *mine)


def build_in(fault: str) -> None:
    for where in FAULTS[fault]:
        after(*where).start()


if __name__ == "__main__":
    build_in(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
