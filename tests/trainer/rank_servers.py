"""Real ranks, started once for many tests: processes that form gloo worlds of any size up to theirs, one by one."""

import importlib
import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

DEADLINE_S = 120


class Ranks:
    """`run(world, function, *arguments)` calls `function(here, *arguments)` on ranks 0 … world - 1.

    `function` is importable by name; `here` is the rank's `Processes`. What a rank raises is raised here as RankFailed.
    """

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
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
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        for pipe in self._pipes[:world]:
            pipe.send((world, port, function.__module__, function.__qualname__, arguments))
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
        world, port, module, name, arguments = job
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank)}
        os.environ |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
        pipe.send(_answer(getattr(importlib.import_module(module), name), arguments))


def _answer(function: Callable[..., Any], arguments: Any) -> tuple[str, Any]:
    from trainer.distributed import processes
    from trainer.errors import TrainerError

    try:
        with processes() as here:
            try:
                return "value", function(here, *arguments)
            except TrainerError as error:
                return type(error).__name__, str(error)
    except BaseException as error:  # noqa: BLE001 - the test that asked must see whatever it was
        return type(error).__name__, traceback.format_exc()
