"""Calls a function on fresh rank processes, each with what torchrun would give it, and returns what they return.

The processes are forked from one that has imported torch and the trainer already: a start costs a fraction of a second.
"""

import os
import socket
import time
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

DEADLINE_S = 150
_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(["trainer.train"])


def on_ranks(world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """function(*arguments) of each rank, by rank; it must be importable. An error of any rank is raised here."""
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
            assert pipe.poll(max(0.0, deadline - time.monotonic())), f"rank {rank} gave no answer"
            problem, result = pipe.recv()
            assert not problem, f"rank {rank}: {problem}"
            results.append(result)
    finally:
        for process, _ in started:
            process.join(timeout=5)  # a rank that has answered only has to exit
            process.kill()
            process.join()
    return results


def _run(
    pipe: Connection, rank: int, world: int, port: int, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    os.environ.update(
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
    try:
        pipe.send(("", function(*arguments)))
    except Exception:  # noqa: BLE001 - it is passed on
        pipe.send((traceback.format_exc(), None))
