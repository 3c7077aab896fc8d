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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.stack import ROOT

if TYPE_CHECKING:
    from torch import nn

    from trainer.config import Recipe
    from trainer.data.batches import Samples

RECIPE = "trainer/recipes/demo.yaml"
STEPS, WARM_UP = 60, 10
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
SETTINGS = (f"training.steps={STEPS}", f"training.evaluate_every={STEPS}", f"checkpoint.every_steps={STEPS}")

Figures = dict[str, float]
"""tokens_per_s; first_step_s: seconds from the command to the end of the first step; the trainer's data_wait_share."""


def measure() -> dict[str, float]:
    figures: dict[str, float] = {"import trainer, s": round(_import_s(), 3)}
    for processes, strategy in ((1, "single"), (2, "ddp"), (2, "fsdp")):
        ours: dict[str, Callable[[int, str], Figures]] = {"trainer": _ours, "trainer, compiled": _compiled}
        peers: dict[str, Callable[[int, str], Figures]] = {"bare loop": _bare}
        if strategy != "fsdp":
            peers["HF Trainer"] = _hugging_face
        ways = peers | ours
        rounds = [{name: way(processes, strategy) for name, way in ways.items()} for _ in range(ROUNDS)]
        for what, larger_is_better in (("tokens_per_s", True), ("first_step_s", False)):
            median = {name: statistics.median(done[name][what] for done in rounds) for name in ways}
            for name, value in median.items():
                figures[f"{strategy} × {processes}: {name}, {what}"] = round(value, 0 if larger_is_better else 2)
            for peer in peers:
                for name in ours:
                    figures[f"{strategy} × {processes}: {what}, {name} / {peer}"] = round(
                        median[name] / median[peer], 3
                    )
        waited = statistics.median(done["trainer"]["data_wait_share"] for done in rounds)
        figures[f"{strategy} × {processes}: trainer, data wait / step"] = round(waited, 5)
    return figures


def _import_s() -> float:
    """Seconds of `import trainer.__main__`, what every command pays, the least of three."""
    code = "import time; began = time.perf_counter(); import trainer.__main__; print(time.perf_counter() - began)"
    return min(float(_run(1, "-c", code)) for _ in range(3))


def _run(processes: int, *argv: str) -> str:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    words = [sys.executable, *(torchrun if processes > 1 else []), *argv]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout


def _compiled(processes: int, strategy: str) -> Figures:
    """The first round pays for the compiler; later ones find its kernels in torch's cache."""
    return _ours(processes, strategy, "training.compile=true")


def _ours(processes: int, strategy: str, *more: str) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        settings = (*SETTINGS, *more, f"strategy={strategy}", f"output_dir={folder}")
        began = time.time()
        _run(processes, "-m", "trainer", RECIPE, *(word for value in settings for word in ("--set", value)))
        text = (Path(folder) / "metrics.jsonl").read_text(encoding="utf-8")
    steps = [event for event in map(json.loads, text.splitlines()) if event["event"] == "step"]
    tokens = statistics.median(event["tokens"] for event in steps)
    ends = [event["time"] for event in steps]
    later = steps[WARM_UP:]
    return {
        "tokens_per_s": tokens / statistics.median(step_times(ends)),
        "first_step_s": ends[0] - began,
        "data_wait_share": sum(event["data_wait_s"] for event in later) / sum(event["step_s"] for event in later),
    }


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


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    from trainer.recipe_file import load

    return load(path, overrides)


def make_model(recipe: Recipe, device: str = "cpu") -> nn.Module:
    """The recipe's model, with the same weights wherever it is made."""
    import torch

    from trainer.models.build import build

    return build(recipe, torch.device(device), code=None, deferred=False).model


def training_samples(recipe: Recipe) -> Samples:
    from trainer.data.opening import open_data
    from trainer.models.build import vocabulary

    return open_data(recipe, vocabulary=vocabulary(recipe.model)).training
