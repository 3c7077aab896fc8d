"""Trains recipes on fresh rank processes that are forked from a process which has already imported everything.

A start of torchrun costs seconds, a run of a tiny model a fraction of one: what torchrun gives a rank (its environment
and a port) is given here, and only the imports are shared.
"""

import os
import socket
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

DEADLINE_S = 300  # ends a hang; a busy machine needs minutes for its imports

_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.trainer.preload"])


class RankFailed(Exception):
    """The traceback of a rank's failure."""


def train(world: int, recipe: Path, overrides: Iterable[str]) -> None:
    """Trains the recipe on `world` ranks. Raises RankFailed; by then, no rank is left."""
    call(world, _train, recipe, list(overrides))


def call(world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What the module-level `function` returns on each of `world` ranks. Raises RankFailed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    deadline = time.monotonic() + DEADLINE_S
    started = []
    for rank in range(world):
        ours, theirs = _CONTEXT.Pipe(duplex=False)
        process = _CONTEXT.Process(target=_run, args=(theirs, rank, world, port, function, arguments))
        process.start()
        theirs.close()
        started.append((process, ours))
    results = []
    try:
        for rank, (_, pipe) in enumerate(started):
            if not pipe.poll(max(0.0, deadline - time.monotonic())):
                raise RankFailed(f"rank {rank} of {world} gave no answer in {DEADLINE_S} s")
            result, failure = pipe.recv()
            if failure:
                raise RankFailed(failure)
            results.append(result)
    finally:
        for process, _ in started:
            process.join(timeout=5)  # a rank that has answered only has to exit
            process.kill()
            process.join()
    return results


def _run(pipe: Connection, rank: int, world: int, port: int, function: Callable[..., Any], arguments: Any) -> None:
    os.environ.update(
        OMP_NUM_THREADS="1",
        CUDA_VISIBLE_DEVICES="",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_WORLD_SIZE=str(world),
    )
    import torch

    torch.set_num_threads(1)
    result, failure = None, ""
    try:
        result = function(*arguments)
    except Exception:  # noqa: BLE001 - it is passed on
        failure = traceback.format_exc()
    pipe.send((result, failure))


def _train(recipe: Path, overrides: Sequence[str]) -> None:
    from trainer.recipe_file import load
    from trainer.train import train

    train(load(recipe, overrides))
