"""Tokens/s of the trainer against a bare loop and Hugging Face's Trainer: same model, data, batch, optimizer, threads.

Goals: at least 0.98 × the bare loop, 1.15 × HF Trainer; time to the first step no longer than theirs. Rounds are
interleaved, medians over steps after warm-up. A CPU's tokens/s says nothing; the ratio does.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bench.stack import ROOT

if TYPE_CHECKING:
    from torch import nn

    from trainer.config import Recipe
    from trainer.data.batches import Windows

RECIPE = "trainer/recipes/demo.yaml"
STEPS, WARM_UP, ROUNDS = 60, 10, 3
SETTINGS = (f"training.steps={STEPS}", f"training.evaluate_every={STEPS}", f"checkpoint.every_steps={STEPS}")

Figures = dict[str, float]
"""tokens_per_s, and first_step_s: seconds from the command to the end of the first step."""


def measure() -> dict[str, float]:
    figures: dict[str, float] = {}
    for processes, strategy in ((1, "single"), (2, "ddp"), (2, "fsdp")):
        ways: dict[str, Callable[[int, str], Figures]] = {"bare loop": _bare, "trainer": _ours}
        if strategy != "fsdp":
            ways["HF Trainer"] = _hugging_face
        rounds = [{name: way(processes, strategy) for name, way in ways.items()} for _ in range(ROUNDS)]
        for what, larger_is_better in (("tokens_per_s", True), ("first_step_s", False)):
            median = {name: statistics.median(done[name][what] for done in rounds) for name in ways}
            for name, value in median.items():
                figures[f"{strategy} × {processes}: {name}, {what}"] = round(value, 0 if larger_is_better else 2)
            for name in ways:
                if name != "trainer":
                    figures[f"{strategy} × {processes}: {what}, trainer / {name}"] = round(
                        median["trainer"] / median[name], 3
                    )
    return figures


def _run(processes: int, *argv: str) -> str:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    words = [sys.executable, *(torchrun if processes > 1 else []), *argv]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout


def _ours(processes: int, strategy: str) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        settings = (*SETTINGS, f"strategy={strategy}", f"output_dir={folder}")
        began = time.time()
        _run(processes, "-m", "trainer", RECIPE, *(word for value in settings for word in ("--set", value)))
        text = (Path(folder) / "metrics.jsonl").read_text(encoding="utf-8")
    steps = [event for event in map(json.loads, text.splitlines()) if event["event"] == "step"]
    tokens = statistics.median(event["tokens"] for event in steps)
    ends = [event["time"] for event in steps]
    return {"tokens_per_s": tokens / statistics.median(step_times(ends)), "first_step_s": ends[0] - began}


def _bare(processes: int, strategy: str) -> Figures:
    return _timed(lambda: _run(processes, "-m", "bench.bare_loop", strategy, RECIPE, str(STEPS), str(WARM_UP)))


def _hugging_face(processes: int, strategy: str) -> Figures:
    del strategy  # one process, or DDP
    return _timed(lambda: _run(processes, "-m", "bench.hf_trainer", RECIPE, str(STEPS), str(WARM_UP)))


def _timed(run: Callable[[], str]) -> Figures:
    began = time.time()
    said = json.loads(run().splitlines()[-1])
    return {"tokens_per_s": said["tokens_per_s"], "first_step_s": said["first_step_at"] - began}


def step_times(ends: list[float], warm_up: int = WARM_UP) -> list[float]:
    """Seconds of each step after the warm-up, from the clock at the end of each."""
    return [later - earlier for earlier, later in zip(ends[warm_up:], ends[warm_up + 1 :], strict=False)]


def load_recipe(path: Path) -> Recipe:
    from trainer.recipe_file import load

    return load(path)


def make_model(recipe: Recipe) -> nn.Module:
    """The recipe's model, with the same weights wherever it is made."""
    import torch

    from trainer.models.llama import Llama

    torch.manual_seed(recipe.seed)
    return Llama(recipe.model)


def training_windows(recipe: Recipe) -> Windows:
    from trainer.data import sources
    from trainer.data.batches import Windows

    return Windows(sources.load(recipe.data).training, length=recipe.data.sequence_length, seed=recipe.seed)
