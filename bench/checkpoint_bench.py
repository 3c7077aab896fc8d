"""How long training stands still for a checkpoint written in the background, against the foreground (goal: < 10 %).

One run, the same state saved both ways by turns, medians without the first pair (which agrees on the plan and
allocates the buffers). A step is trained between saves, and the save before has always ended.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.stack import ROOT

PAIRS = 6
MODEL = ("model.layers=4", "model.width=512", "model.heads=8", "model.kv_heads=8")  # 13 million parameters, 160 MB


def measure() -> dict[str, float]:
    figures: dict[str, float] = {}
    for processes, strategy in ((1, "single"), (2, "fsdp")):
        words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        argv = [sys.executable, *words, "-m", "bench.checkpoint_bench", strategy]
        done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr[-2000:])
        figures |= {
            f"{strategy} × {processes}: {name}": value
            for name, value in json.loads(done.stdout.splitlines()[-1]).items()
        }
    return figures


def stalls(name: str) -> dict[str, float] | None:
    """On one rank; rank 0 returns the figures."""
    import torch

    from tests.trainer import checkpoint_jobs as jobs
    from trainer.distributed import processes
    from trainer.recipe_file import load

    torch.set_num_threads(1)
    with processes() as here, tempfile.TemporaryDirectory() as folder:
        output = Path(here.from_rank(folder if here.rank == 0 else None, source=0))
        strategy = jobs.prepared(here, load(jobs.RECIPE, [f"strategy={name}", *MODEL]))
        kept = {way: jobs.checkpoints(here, output / str(way), asynchronous=way, keep=1) for way in (False, True)}
        stalled: dict[bool, list[float]] = {False: [], True: []}
        whole = []
        for step in range(1, PAIRS + 2):
            for way, checkpoints in kept.items():
                jobs.step(strategy, step)
                here.barrier()
                started = time.monotonic()
                checkpoints.save(step, strategy, facts=jobs.FACTS)
                stalled[way].append(time.monotonic() - started)
                checkpoints.wait()
                whole.append(time.monotonic() - started)
        for checkpoints in kept.values():
            checkpoints.close()
        here.barrier()
        background, foreground = (statistics.median(stalled[way][1:]) for way in (True, False))
        return (
            {
                "in the foreground, ms": round(foreground * 1000, 1),
                "stall in the background, ms": round(background * 1000, 1),
                "first stall in the background, ms": round(stalled[True][0] * 1000, 1),
                "until complete, ms": round(statistics.median(whole[3::2]) * 1000, 1),
                "stall / foreground": round(background / foreground, 4),
            }
            if here.rank == 0
            else None
        )


if __name__ == "__main__":
    result = stalls(sys.argv[1])
    if result is not None:
        print(json.dumps(result))
