"""Starts one process a rank with what torchrun would give it, so that a measurement can end them when it has enough."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.stack import ROOT


class RanksFailed(Exception):
    """A rank ended with an error, or not in time; says the end of its output."""


def run_ranks(
    world: int,
    argv: Sequence[str],
    *,
    cpu: bool,
    deadline_s: float,
    enough: Callable[[], bool] = lambda: False,
) -> str:
    """Rank 0's standard output. Ends all ranks at once when `enough` says so; no checkpoint is written then.

    cpu: hide the GPUs. Raises RanksFailed; by then no rank is left.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world), "PYTHONPATH": str(ROOT)}
    common |= {"LOCAL_WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
    if cpu:
        common["CUDA_VISIBLE_DEVICES"] = ""
    deadline = time.monotonic() + deadline_s
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, f"{rank}.{kind}") for rank in range(world) for kind in ("out", "err")]
        started = []
        try:
            for rank in range(world):
                with outputs[2 * rank].open("wb") as out, outputs[2 * rank + 1].open("wb") as err:
                    started.append(
                        subprocess.Popen(
                            [sys.executable, *argv],
                            cwd=ROOT,
                            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                            stdin=subprocess.DEVNULL,
                            stdout=out,
                            stderr=err,
                        )
                    )
            while any(process.poll() is None for process in started):
                if enough():
                    break
                failed = [process.returncode for process in started if process.returncode]
                if failed or time.monotonic() > deadline:
                    why = f"exit {failed[0]}" if failed else f"not over in {deadline_s:g} s"
                    raise RanksFailed(f"{' '.join(argv[:3])}: {why}: {_last_lines(outputs)}")
                time.sleep(0.1)
            failed = [process.returncode for process in started if process.returncode]
            if failed:
                raise RanksFailed(f"{' '.join(argv[:3])}: exit {failed[0]}: {_last_lines(outputs)}")
            return outputs[0].read_text(encoding="utf-8", errors="replace")
        finally:
            for process in started:
                process.kill()
                process.wait()


def _last_lines(outputs: Sequence[Path]) -> str:
    said = [path.read_text(encoding="utf-8", errors="replace").strip() for path in outputs if path.suffix == ".err"]
    return next((" / ".join(text.splitlines()[-3:]) for text in said if text), "no output")
