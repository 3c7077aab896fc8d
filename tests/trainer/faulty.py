"""Runs the trainer in this process with a fault built in: `python -m tests.trainer.faulty CASES`, one process a rank.

CASES is JSON: [{"fault": …, "port": …, "arguments": […]}, …], run one after the other, so that torch is imported once.
Rank and world come from RANK and WORLD_SIZE. After each case: one line `case FAULT: exit code N`.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from trainer.__main__ import main
from trainer.checkpoint import Checkpoints
from trainer.models.llama import Llama
from trainer.strategies.ddp import DDP
from trainer.strategies.fsdp import FSDP
from trainer.watch.watchdog import DATA, SAVE, Watchdog

RANK = int(os.environ["RANK"])
_place: dict[str, Any] = {}


def after(owner: type, method: str, action: Callable[..., Any]) -> Any:
    """`action(result, self, *arguments)` takes the method's result and gives the one that the caller sees."""
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
        if RANK == 1 and _place["step"] in steps:
            for weight in strategy.module.parameters():
                if weight.grad is not None:
                    weight.grad.mul_(float("nan"))
            return loss * float("nan") if loss_too else loss
        return loss

    return action


def spike(loss: Tensor, *_: Any) -> Tensor:
    return loss * 50 if _place["step"] == 20 else loss


def notice(result: None, watchdog: Watchdog, phase: str, step: int) -> None:
    """The file appears in the second step, on a path that only rank 1 looks at."""
    del result, watchdog, phase
    if RANK == 1 and step == 2:
        with open(os.environ["NOTICE"], "w", encoding="utf-8"):  # noqa: PTH123
            pass


def stop_in_evaluation(result: Tensor, *_: Any) -> Tensor:
    if RANK == 1 and not torch.is_grad_enabled():
        os.kill(os.getpid(), signal.SIGTERM)
    return result


def stop_twice(result: Any, *_: Any) -> Any:
    """In the save that a signal asked for, and after it."""
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    return result


def stop_in_step_three(result: None, watchdog: Watchdog, phase: str, step: int) -> None:
    del result, watchdog
    if step == 3 and phase == DATA and RANK == 0:
        os.kill(os.getpid(), signal.SIGTERM)


def asleep(result: None, watchdog: Watchdog, phase: str, step: int) -> None:
    del result, watchdog
    if RANK == 1 and step == 3 and phase == DATA:
        threading.Event().wait()


def suspended(result: None, watchdog: Watchdog, phase: str, step: int) -> None:
    del result, watchdog
    if RANK == 1 and step == 3 and phase == DATA:
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


FAULTS: dict[str, list[tuple[type, str, Callable[..., Any]]]] = {
    "none": [],
    "bad loss": [(DDP, "backward", poison(steps={3}, loss_too=True))],
    "bad gradients": [(FSDP, "backward", poison(steps={3}, loss_too=False))],
    "always bad": [(DDP, "backward", poison(steps=set(range(3, 1000)), loss_too=True))],
    "spike": [(DDP, "backward", spike)],
    "notice": [(Watchdog, "at", notice)],
    "stop in evaluation": [(Llama, "forward", stop_in_evaluation)],
    "two signals": [(Watchdog, "at", stop_in_step_three), (Checkpoints, "save", stop_twice)],
    "asleep in data": [(Watchdog, "at", asleep)],
    "suspended": [(Watchdog, "at", suspended)],
    "slow save": [(Watchdog, "at", slow_save)],
}


@contextmanager
def built_in(fault: str) -> Iterator[None]:
    patches = [after(Watchdog, "at", remember_step), *(after(*where) for where in FAULTS[fault])]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()


def run(cases: list[dict[str, Any]]) -> None:
    for case in cases:
        os.environ["MASTER_PORT"] = str(case["port"])
        arguments = case["arguments"]
        if RANK == 1 and "notice_file" in case:
            os.environ["NOTICE"] = case["notice_file"]
            arguments = [*arguments, "--set", f"watch.notice_file={case['notice_file']}"]
        _place.clear()
        with built_in(case["fault"]):
            code = main(arguments)
        print(f"case {case['fault']}: exit code {code}", flush=True)


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
