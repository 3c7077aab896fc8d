"""Runs the trainer the way a user does: through torchrun, in its own session, with a deadline."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.trainer import ranks
from tests.trainer.ranks import end_with_parent

if TYPE_CHECKING:
    from trainer.distributed import Processes
    from trainer.strategies import Strategy

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "trainer" / "recipes" / "smoke.yaml"
DEADLINE_S = 170

Start = Callable[..., "subprocess.Popen[str]"]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Ranks are forked from a process with what the chosen tests' marks `ranks_import` name."""
    for item in session.items:
        for mark in item.iter_markers("ranks_import"):
            ranks.preload(*mark.args)


@pytest.fixture(scope="module")
def here() -> "Iterator[Processes]":
    """A world of this process alone."""
    from trainer.distributed import processes  # torch takes seconds, and not every test needs it

    with processes() as joined:
        yield joined


@pytest.fixture
def strategy(here: "Processes") -> "Strategy":
    """After one step of `single`."""
    from tests.trainer import checkpoint_jobs as jobs

    made = jobs.prepared(here, jobs.recipe_for(1, "single"))
    jobs.step(made, 1)
    return made


def command(world: int, *overrides: str, launcher: Sequence[str] = (), recipe: Path = RECIPE) -> list[str]:
    """`world` 0: the plain module, without torchrun."""
    sets = [word for item in overrides for word in ("--set", item)]
    if not world:
        return [sys.executable, "-m", "trainer", str(recipe), *sets]
    how = list(launcher) or ["--standalone", f"--nproc-per-node={world}"]
    return [sys.executable, "-m", "torch.distributed.run", *how, "-m", "trainer", str(recipe), *sets]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process in its own session; whatever is left of it at the end of the test is killed."""
    yield from _starting()


def _starting() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def launch(argv: Sequence[str], *, environment: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
        common = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
        process = subprocess.Popen(
            list(argv),
            env={**os.environ, **common, **(environment or {})},
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(end_with_parent, signal.SIGTERM),  # torchrun then ends its ranks
        )
        started.append(process)
        return process

    yield launch
    for process in started:
        if process.poll() is None:
            kill_group(process)
        process.communicate()


def kill_group(agent: "subprocess.Popen[str]") -> None:
    """A node that is gone: the agent, and its ranks, which have sessions of their own."""
    for pid in reversed(descendants(agent.pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    agent.wait()


def descendants(pid: int) -> list[int]:
    children = (Path("/proc") / str(pid) / "task").glob("*/children")
    found = [int(child) for path in children for child in path.read_text().split()]
    return [pid, *(each for child in found for each in descendants(child))]


@contextmanager
def mounted_disk(folder: Path, options: str) -> Iterator[Path]:
    """A disk in memory at a new folder; skips the test where mounting isn't allowed."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("mounting a small disk takes root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def finish(process: "subprocess.Popen[str]", *, code: int | None = 0) -> str:
    output, _ = process.communicate(timeout=DEADLINE_S)
    if code is not None:
        assert process.returncode == code, output[-4000:]
    return output


def events(output: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines() if line]
    return [line for line in lines if line["event"] == kind]


def numbers(output: Path, key: str) -> list[float]:
    return [line[key] for line in events(output, "step")]
