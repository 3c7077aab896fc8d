"""Tokens/s of the trainer against a bare loop over the same model, data, optimizer and threads (goal: at least 0.98×).

One process and two under `ddp`; A/B/A/B rounds, medians over steps after warm-up. A CPU's tokens/s says nothing;
the ratio does.
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

RECIPE = "trainer/recipes/demo.yaml"
STEPS, WARM_UP, ROUNDS = 60, 10, 3
SETTINGS = (f"training.steps={STEPS}", f"training.evaluate_every={STEPS}", f"checkpoint.every_steps={STEPS}")


def measure() -> dict[str, float]:
    figures: dict[str, float] = {}
    for processes, strategy in ((1, "single"), (2, "ddp")):
        ours, bare = [], []
        for _ in range(ROUNDS):
            bare.append(_bare(processes))
            ours.append(_ours(processes, strategy))
        figures[f"{strategy} × {processes}: bare loop, tokens/s"] = round(statistics.median(bare))
        figures[f"{strategy} × {processes}: trainer, tokens/s"] = round(statistics.median(ours))
        figures[f"{strategy} × {processes}: ratio"] = round(statistics.median(ours) / statistics.median(bare), 3)
    return figures


def _torchrun(processes: int, *argv: str) -> str:
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), *argv]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout


def _ours(processes: int, strategy: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        settings = (*SETTINGS, f"strategy={strategy}", f"output_dir={folder}")
        _torchrun(processes, "-m", "trainer", RECIPE, *(word for value in settings for word in ("--set", value)))
        text = (Path(folder) / "metrics.jsonl").read_text(encoding="utf-8")
    steps = [event for event in map(json.loads, text.splitlines()) if event["event"] == "step"]
    times = [
        later["time"] - earlier["time"] for earlier, later in zip(steps[WARM_UP:], steps[WARM_UP + 1 :], strict=False)
    ]
    return statistics.median(event["tokens"] for event in steps) / statistics.median(times)


def _bare(processes: int) -> float:
    return float(_torchrun(processes, "-m", "bench.trainer_bench").split()[-1])


def bare_loop() -> None:
    """What a person would write by hand: no checkpoint, no log, no agreement among ranks. Prints rank 0's tokens/s."""
    import torch
    import torch.distributed as dist
    from torch.nn import functional
    from torch.nn.parallel import DistributedDataParallel

    from trainer.config import accumulation_steps
    from trainer.data import sources
    from trainer.data.batches import IGNORED, Windows, rank_counters
    from trainer.models.llama import Llama
    from trainer.recipe_file import load

    recipe = load(Path(RECIPE))
    dist.init_process_group("gloo")
    rank, world, micro = dist.get_rank(), dist.get_world_size(), recipe.training.micro_batch_size
    torch.manual_seed(recipe.seed)
    model: torch.nn.Module = Llama(recipe.model)
    model = DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    windows = Windows(sources.load(recipe.data).training, length=recipe.data.sequence_length, seed=recipe.seed)
    accumulation, size = accumulation_steps(recipe, world), recipe.training.global_batch_size
    ends = [time.monotonic()]
    for step in range(STEPS):
        for index in range(accumulation):
            counters = rank_counters(step * size, micro=micro, index=index, rank=rank, world=world)
            inputs, targets = (torch.from_numpy(part) for part in windows.read(counters, size=micro))
            if world > 1:
                model.require_backward_grad_sync = index == accumulation - 1  # type: ignore[assignment]
            logits = model(inputs).flatten(0, 1)
            loss = functional.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED)
            (loss / accumulation).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        ends.append(time.monotonic())
    times = [later - earlier for earlier, later in zip(ends[WARM_UP:], ends[WARM_UP + 1 :], strict=False)]
    if rank == 0:
        print(size * recipe.data.sequence_length / statistics.median(times))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    bare_loop()
