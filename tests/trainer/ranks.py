"""Ranks without torchrun: processes that are forked from one which has already imported everything a run imports.

A start of torchrun costs seconds, a run of a tiny model a fraction of one: what torchrun gives a rank (its environment
and a port) is given here, and only the imports are shared.

    call(2, function, "x")                      what function("x") returned, by rank; RankFailed if one didn't return
    train(2, recipe, ["seed=1"])                the same for training a recipe
    outcomes(2, function, "x")                  how each rank ended: its value or error, exit code and output
    outcomes(2, trainer, recipe, "seed=1")      the same for the command line, `python -m trainer recipe --set seed=1`
    with running(2, function, "x") as ranks:    while they run, for a test that sends them signals

A function is one that another process can import. A world of 0 is one process that torchrun didn't start. Ranks see the
environment and folder of the test that starts them, and none outlives it, however pytest ends.
"""

import ctypes
import multiprocessing.connection
import os
import pickle
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

DEADLINE_S = 300  # ends a hang; a busy machine needs minutes for its imports
ROOT = Path(__file__).resolve().parents[2]

_CONTEXT = get_context("forkserver")
_preloaded = ["tests.trainer.preload"]
_CONTEXT.set_forkserver_preload(_preloaded)


def preload(*modules: str) -> None:
    """Has the modules imported once instead of by each rank. For what costs seconds; before any rank is started."""
    _preloaded.extend(name for name in modules if name not in _preloaded)
    _CONTEXT.set_forkserver_preload(_preloaded)


class RankFailed(Exception):
    """A rank didn't return: its traceback or exit code, and the end of what it printed."""


@dataclass(frozen=True)
class Outcome:
    """How a rank ended. `error` is the class of what it raised; `output` has both streams, tracebacks among them."""

    exit_code: int | None  # negative: the signal that ended it
    output: str
    value: Any = None
    error: str = ""


class Rank:
    """One process. Ended by `running` at the latest."""

    def __init__(self, process: BaseProcess, answer: Connection, output: Path) -> None:
        self._process, self.answer, self._output = process, answer, output

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def finish(self) -> Outcome:
        """Waits for its end. Raises RankFailed after DEADLINE_S."""
        deadline = time.monotonic() + DEADLINE_S
        value, error = None, ""
        if self.answer.poll(DEADLINE_S):
            with suppress(EOFError):  # it ended by itself: the exit code says how
                value, error = pickle.loads(self.answer.recv_bytes())  # noqa: S301 - our own child's
        self._process.join(max(0.0, deadline - time.monotonic()))
        output = self._output.read_text(errors="replace") if self._output.exists() else ""
        if self._process.is_alive():
            raise RankFailed(f"{self._process.name} didn't end in {DEADLINE_S} s; it printed:\n{output[-4000:]}")
        return Outcome(self._process.exitcode, output, value, error)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
        self.answer.close()


@contextmanager
def running(world: int, function: Callable[..., Any], *arguments: Any, nodes: int = 1) -> Iterator[list[Rank]]:
    """The started ranks; what is left of them at the end is killed. nodes: hosts that the ranks believe to be on."""
    job = pickle.dumps((function, arguments))
    started: list[Rank] = []
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        try:
            for number, environment in enumerate(_environments(world, nodes)):
                ours, theirs = _CONTEXT.Pipe(duplex=False)
                output = Path(folder) / str(number)
                process = _CONTEXT.Process(
                    target=_run, args=(theirs, environment, output, job), name=f"rank {number} of {world}"
                )
                _start(process)
                theirs.close()
                started.append(Rank(process, ours, output))
            yield started
        finally:
            for rank in started:
                rank.kill()


def outcomes(world: int, function: Callable[..., Any], *arguments: Any, nodes: int = 1) -> list[Outcome]:
    """By rank, how it ended. A rank may fail, and still the others are waited for."""
    with running(world, function, *arguments, nodes=nodes) as ranks:
        return [rank.finish() for rank in ranks]


def call(world: int, function: Callable[..., Any], *arguments: Any, nodes: int = 1) -> list[Any]:
    """What each rank returned. Raises RankFailed for the first that didn't, without waiting for the others."""
    with running(world, function, *arguments, nodes=nodes) as ranks:
        values = {}
        while len(values) < len(ranks):
            waiting = {rank.answer: number for number, rank in enumerate(ranks) if number not in values}
            ready = multiprocessing.connection.wait(list(waiting), DEADLINE_S) or list(waiting)
            for number in (waiting[answer] for answer in ready):  # type: ignore[index]
                ended = ranks[number].finish()
                if ended.exit_code != 0 or ended.error:
                    raise RankFailed(f"rank {number} of {world}: exit code {ended.exit_code}\n{ended.output[-8000:]}")
                values[number] = ended.value
        return [values[number] for number in range(len(ranks))]


def train(world: int, recipe: Path, overrides: Iterable[str]) -> None:
    """Trains the recipe. Raises RankFailed."""
    call(world, _train, recipe, list(overrides))


def trainer(recipe: Path, *overrides: str) -> NoReturn:
    """What `python -m trainer` does in a rank, up to its exit code."""
    from trainer.__main__ import main

    sys.exit(main([str(recipe), *(word for item in overrides for word in ("--set", item))]))


def _train(recipe: Path, overrides: list[str]) -> None:
    from trainer.recipe_file import load
    from trainer.train import train

    train(load(recipe, overrides))


def end_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """Has the kernel send the signal to this process once its parent has ended, though that was killed."""
    if sys.platform == "linux":
        parent_death_signal = 1
        ctypes.CDLL(None).prctl(parent_death_signal, by, 0, 0, 0)


def _environments(world: int, nodes: int) -> list[dict[str, str]]:
    common = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    if world == 0:
        return [common]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1]), "WORLD_SIZE": str(world)}
    local = world // nodes
    assert local * nodes == world
    common |= {"LOCAL_WORLD_SIZE": str(local)}
    return [
        {**common, "RANK": str(rank), "LOCAL_RANK": str(rank % local), "GROUP_RANK": str(rank // local)}
        for rank in range(world)
    ]


def _start(process: BaseProcess) -> None:
    # The server imports `preload` from the path that it finds when it starts, and says nothing if it can't.
    path = os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]).rstrip(os.pathsep)
    with mock.patch.dict(os.environ, PYTHONPATH=path):
        forkserver.ensure_running()
    process.start()


def _run(answer: Connection, environment: dict[str, str], output: Path, job: bytes) -> None:
    """What a rank does."""
    end_with_parent()
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.clear()
    os.environ.update(environment)
    import torch

    torch.set_num_threads(1)
    try:
        function, arguments = pickle.loads(job)  # noqa: S301 - our own parent's
        result = pickle.dumps((function(*arguments), ""))
    except Exception as error:  # noqa: BLE001 - it is passed on
        traceback.print_exc()
        answer.send_bytes(pickle.dumps((None, type(error).__name__)))
        sys.exit(1)
    answer.send_bytes(result)
