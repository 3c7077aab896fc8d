"""Real ranks, started once for many tests: processes that form gloo worlds of any size up to theirs, one by one."""

import importlib
import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

DEADLINE_S = 120


class Ranks:
    """`run(world, function, *arguments)` calls `function(here, *arguments)` on ranks 0 … world - 1.

    `function` is importable by name; `here` is the rank's `Processes`. What a rank raises is raised here as RankFailed.
    """

    def __init__(self, size: int, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder, self._count = folder, 0
        pipes = [context.Pipe() for _ in range(size)]
        self._pipes = [ours for ours, _ in pipes]
        self._processes = [
            context.Process(target=_serve, args=(theirs, rank), daemon=True) for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()

    def run(self, world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        answers = self.outcomes(world, function, *arguments)
        for rank, (kind, value) in enumerate(answers):
            if kind != "value":
                raise RankFailed(f"rank {rank}: {value}")
        return [value for _, value in answers]

    def outcomes(self, world: int, function: Callable[..., Any], *arguments: Any) -> list[tuple[str, Any]]:
        """By rank: ("value", what was returned), or (name of the exception's class, its text)."""
        self._count += 1
        store = self._folder / f"store-{self._count}"
        for pipe in self._pipes[:world]:
            pipe.send((world, str(store), function.__module__, function.__qualname__, arguments))
        answers = []
        for rank, pipe in enumerate(self._pipes[:world]):
            assert pipe.poll(DEADLINE_S), f"rank {rank} doesn't answer"
            answers.append(pipe.recv())
        return answers

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(DEADLINE_S)


class RankFailed(AssertionError):
    pass


def _serve(pipe: Connection, rank: int) -> None:
    os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    import torch

    torch.set_num_threads(1)
    while (job := pipe.recv()) is not None:
        world, store, module, name, arguments = job
        pipe.send(_answer(rank, world, store, getattr(importlib.import_module(module), name), arguments))


def _answer(rank: int, world: int, store: str, function: Callable[..., Any], arguments: Any) -> tuple[str, Any]:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from trainer.distributed import Processes
    from trainer.errors import TrainerError

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        control = dist.new_group(backend="gloo", timeout=timedelta(seconds=DEADLINE_S / 2))
        here = Processes(rank, world, rank, world, torch.device("cpu"), control)
        try:
            answer = ("value", function(here, *arguments))
        except TrainerError as error:
            answer = (type(error).__name__, str(error))
        here.barrier()
    except BaseException as error:  # noqa: BLE001 - the test that asked must see whatever it was
        return type(error).__name__, traceback.format_exc()
    finally:
        dist.destroy_process_group()
    return answer
