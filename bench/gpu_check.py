"""`make gpu-check`: parity, memory, MFU and tokens/s on the NVIDIA GPUs of this machine, into bench/RESULTS.md.

It has never been run on a GPU, only walked through on CPU (`--device cpu --tiny`): its first run may well fail, and is
then the first to report. It is meant to take about ten minutes on one H200.
- parity: each strategy and precision on all visible GPUs against one GPU with `single`: largest relative difference.
- memory: footprint's prediction against the bytes that lie on each rank and torch.cuda.max_memory_allocated.
- speed: MFU and tokens/s of the largest ready model of 1 to 8 billion parameters that fits in bf16, under the trainer
  and under the bare loop; micro-batch and activation checkpointing as the footprint allows.
torchtitan isn't run: what is installed of it is only said.

Exit codes: 0 measured; 1 a check failed or missed a bound; 3 there is no NVIDIA GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.ranks import RanksFailed, run_ranks
from bench.stack import ROOT
from bench.trainer_bench import step_times

NO_GPU = 3
RESULTS = ROOT / "bench" / "RESULTS.md"
BANDS = {"float32": 1e-4, "bf16": 1e-2}  # relative, as in tests/trainer/test_parity.py
STEP_LIMIT = 1_000_000  # never reached: a speed run is ended when it has enough, so that it saves nothing
CANDIDATES = ("llama-3.1-8b", "llama-3.2-3b", "tinyllama-1.1b")
Row = tuple[str, str, str]  # what, goal, measured


@dataclass(frozen=True)
class Plan:
    """What is measured, on what."""

    cpu: bool
    world: int
    device: str
    memory: int  # bytes of one device
    recipe: str
    precisions: tuple[str, ...]
    strategies: tuple[str, ...]
    parity: tuple[str, ...]  # overrides
    models: tuple[tuple[str, ...], ...]  # overrides, the largest first
    micro_batches: tuple[int, ...]
    windows: int  # of the speed run that count
    log_every: int
    memory_worlds: tuple[int, ...]
    deadline_s: float


def plan_for(*, cpu: bool, tiny: bool) -> Plan | None:
    """None: the device that was asked for isn't there."""
    import torch

    if not cpu and (not torch.cuda.is_available() or torch.version.cuda is None):
        return None
    device, memory = ("cpu", 8 * 2**30) if cpu else (torch.cuda.get_device_name(0), _least_memory())
    world = 2 if cpu else torch.cuda.device_count()
    if tiny:
        recipe = "trainer/recipes/smoke.yaml"
        batch = (f"training.global_batch_size={2 * world}",)
        return Plan(
            cpu, world, device, memory, recipe, ("float32",), ("fsdp",), batch, ((),), (2, 1), 2, 2, (world,), 300.0
        )
    shape = ("model.layers=4", "model.width=512", "model.heads=8", "model.kv_heads=4")
    strategies = ("ddp", "fsdp", "hsdp", "deepspeed")
    settings = (*shape, "data.sequence_length=256", f"training.global_batch_size={4 * world}", "training.steps=10")
    models = tuple((f"model={{preset: {name}}}", "data.sequence_length=4096") for name in CANDIDATES)
    recipe = "trainer/recipes/llama-1b.yaml"
    parity = (*settings, "training.micro_batch_size=2")
    return Plan(cpu, world, device, memory, recipe, ("float32", "bf16"), strategies, parity, models, (8, 4, 2, 1),
                4, 5, tuple(sorted({1, world})), 240.0)  # fmt: skip


def _least_memory() -> int:
    import torch

    return min(torch.cuda.get_device_properties(index).total_memory for index in range(torch.cuda.device_count()))


def _trainer(recipe: str, overrides: Sequence[str]) -> list[str]:
    return ["-m", "trainer", recipe, *(word for item in overrides for word in ("--set", item))]


def _events(folder: str, kind: str) -> list[dict[str, Any]]:
    path = Path(folder, "metrics.jsonl")
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def parity(plan: Plan) -> tuple[list[Row], bool]:
    """Whether all losses stay within their band of the reference's, and the largest differences."""
    rows, good = [], True
    for precision in plan.precisions:
        reference: list[float] = []
        for strategy, world in (("single", 1), *((name, plan.world) for name in plan.strategies)):
            with tempfile.TemporaryDirectory() as folder:
                settings = [f"strategy={strategy}", f"training.precision={precision}", f"output_dir={folder}"]
                argv = _trainer(plan.recipe, [*plan.parity, *settings, "metrics.sinks=[jsonl]"])
                try:
                    run_ranks(world, argv, cpu=plan.cpu, deadline_s=plan.deadline_s)
                except RanksFailed as error:
                    rows.append((f"parity, {precision}: {strategy} × {world}", "runs", f"failed: {_cell(error)}"))
                    good = False
                    continue
                losses = [event["loss"] for event in _events(folder, "step")]
            if strategy == "single":
                reference = losses
                continue
            difference = _difference(losses, reference)
            good &= difference <= BANDS[precision]
            what = f"parity, {precision}: {strategy} × {world} against single × 1, {len(losses)} steps"
            rows.append((what, f"≤ {BANDS[precision]:g}", f"{difference:.2g}"))
    return rows, good


def _difference(losses: Sequence[float], reference: Sequence[float]) -> float:
    """The largest relative one; infinite when there is nothing to compare or a loss is no number."""
    if not losses or len(losses) != len(reference) or None in (*losses, *reference):
        return float("inf")
    return max(abs(one - other) / abs(other) for one, other in zip(losses, reference, strict=True))


def _predicted(plan: Plan, overrides: Sequence[str], strategy: str, world: int) -> Any:
    """The footprint of a plain strategy, without its offloads; fsdp on one rank shards over one."""
    from trainer.footprint import predict, weights_of
    from trainer.models.activations import measure
    from trainer.models.build import build_shapes
    from trainer.recipe_file import load
    from trainer.strategies.layouts import Layout

    recipe = load(ROOT / plan.recipe, overrides)
    sharded = strategy == "fsdp"
    parts = {"parameters": world, "gradients": world, "optimizer": world} if sharded else {}
    layout = Layout({"name": strategy}, world, gathers=sharded, buckets=strategy == "ddp", **parts)
    low, training = recipe.training.precision == "bf16", recipe.training
    return predict(
        layout,
        weights_of(build_shapes(recipe).model),
        measure(recipe, cast=low and sharded),
        low=low,
        micro_batches=training.global_batch_size // (training.micro_batch_size * world),
    )


def choose(plan: Plan) -> tuple[list[str], Any] | None:
    """(overrides, footprint) of the largest model and then batch that fits, recomputing only where it must."""
    for model in plan.models:
        for recompute in (False, True):
            for micro in plan.micro_batches:
                overrides = [
                    *model,
                    "training.precision=bf16",
                    f"training.micro_batch_size={micro}",
                    f"training.global_batch_size={micro * plan.world}",
                    f"training.activation_checkpointing={str(recompute).lower()}",
                ]
                found = _predicted(plan, overrides, "fsdp", plan.world)
                if found.peak <= 0.9 * plan.memory:
                    return overrides, found
    return None


def memory(plan: Plan, overrides: Sequence[str]) -> tuple[list[Row], bool]:
    """Bytes per rank on one device and on all, under fsdp."""
    rows, good = [], True
    for world in plan.memory_worlds:
        batch = next(item for item in overrides if item.startswith("training.micro_batch_size="))
        settings = [*overrides, f"training.global_batch_size={int(batch.partition('=')[2]) * world}", "strategy=fsdp"]
        found = _predicted(plan, settings, "fsdp", world)
        if found.peak > 0.9 * plan.memory:
            rows.append((f"memory, fsdp × {world}", "–", "not measured: predicted not to fit"))
            continue
        argv = ["-m", "bench.gpu_memory", plan.recipe, *settings]
        measured = json.loads(run_ranks(world, argv, cpu=plan.cpu, deadline_s=plan.deadline_s).splitlines()[-1])
        for kind, size in measured.items():
            ratio = size / getattr(found, kind)
            good &= kind == "peak" or abs(ratio - 1) <= 0.02
            goal = "–" if kind == "peak" else "0.98 to 1.02"
            rows.append((f"memory, fsdp × {world}: {kind}, {size:,} bytes, by the prediction", goal, f"{ratio:.3f}"))
    return rows, good


def speed(plan: Plan, overrides: Sequence[str]) -> tuple[list[Row], bool]:
    """MFU and tokens/s of the trainer, and its tokens/s against the bare loop's."""
    steps = plan.log_every * (plan.windows + 1)  # the first window warms up
    endless = [f"training.steps={STEP_LIMIT}", f"training.evaluate_every={STEP_LIMIT}"]
    endless += [f"checkpoint.every_steps={STEP_LIMIT}", f"training.log_every={plan.log_every}", "strategy=fsdp"]
    with tempfile.TemporaryDirectory() as folder:
        argv = _trainer(plan.recipe, [*overrides, *endless, f"output_dir={folder}", "metrics.sinks=[jsonl]"])

        def enough() -> bool:
            return len(_events(folder, "window")) > plan.windows

        run_ranks(plan.world, argv, cpu=plan.cpu, deadline_s=plan.deadline_s, enough=enough)
        windows = _events(folder, "window")[1:]
        ends = [event["time"] for event in _events(folder, "step")]
        (start,) = _events(folder, "start")
    argv = ["-m", "bench.bare_loop", "fsdp", plan.recipe, str(steps), str(plan.log_every), *overrides]
    bare, problem = 0.0, ""
    try:
        said = run_ranks(plan.world, argv, cpu=plan.cpu, deadline_s=plan.deadline_s)
        bare = json.loads(said.splitlines()[-1])["tokens_per_s"]
    except RanksFailed as error:  # it holds all logits in float32, and may need more memory than the trainer
        problem = f"failed: {_cell(error)}"
    from trainer.recipe_file import load

    recipe = load(ROOT / plan.recipe, overrides)
    tokens = recipe.training.global_batch_size * recipe.data.sequence_length
    step_s = statistics.median(step_times(ends, plan.log_every))
    ours = tokens / step_s
    what = f"{start['parameters']:,} parameters, bf16, fsdp × {plan.world}, sequences of {recipe.data.sequence_length}"
    what += f", micro-batch {recipe.training.micro_batch_size}"
    what += ", recomputing activations" if recipe.training.activation_checkpointing else ""
    used = [window["mfu"] for window in windows if "mfu" in window]
    waited = sum(window["data_wait_s"] for window in windows) / (len(windows) * plan.log_every * step_s)
    rows = [
        (f"{what}: tokens/s", "–", f"{ours:,.0f}"),
        ("the same: MFU", "> 50 %", f"{statistics.median(used):.1%}" if used else "unknown: no peak for this device"),
        ("the same: tokens/s by the bare loop's", "≥ 0.98", problem or f"{ours / bare:.3f}"),
        ("the same: data wait by step time", "< 2 %", f"{waited:.2%}"),
    ]
    return rows, not problem


def check(plan: Plan, results: Path) -> bool:
    """Runs everything, appends a dated section to `results` and a JSON beside it. False: something failed or missed."""
    began, rows, good = time.monotonic(), [], True
    chosen = choose(plan)
    parts: list[tuple[str, Callable[[], tuple[list[Row], bool]]]] = [("parity", lambda: parity(plan))]
    if chosen is None:
        rows.append(("a model of 1 to 8 billion parameters", "fits", "none fits into this memory"))
        good = False
    else:
        parts += [("memory", lambda: memory(plan, chosen[0])), ("speed", lambda: speed(plan, chosen[0]))]
    for name, part in parts:
        try:
            found, fine = part()
        except RanksFailed as error:  # what the other checks find is worth having
            found, fine = [(name, "runs", f"failed: {_cell(error)}")], False
        rows, good = rows + found, good and fine
        print(*(f"{what}  (goal {goal}): {value}" for what, goal, value in found), sep="\n", flush=True)
    titan = importlib.util.find_spec("torchtitan") is not None
    rows.append(("torchtitan", "–", "installed, but this check doesn't run it" if titan else "not installed"))
    _write(plan, results, rows, seconds=time.monotonic() - began)
    return good


def _write(plan: Plan, results: Path, rows: Sequence[Row], *, seconds: float) -> None:
    import torch

    title = f"gpu-check, {time.strftime('%Y-%m-%d', time.gmtime())}: {plan.world} × {plan.device}"
    facts = (
        f"torch {torch.__version__}, CUDA {torch.version.cuda}, {plan.memory / 2**30:.0f} GiB each; {seconds:.0f} s."
    )
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    with results.open("a", encoding="utf-8") as file:
        file.write(f"\n## {title}\n{facts}.\n\n| what | goal | measured |\n| --- | --- | --- |\n{table}\n")
    record = {"device": plan.device, "world": plan.world, "torch": torch.__version__, "rows": rows, "seconds": seconds}
    results.with_name("gpu-check.json").write_text(json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8")


def _cell(error: Exception) -> str:
    return str(error).replace("|", "/").replace("\n", " ")[:400]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try the script itself")
    parser.add_argument("--tiny", action="store_true", help="toy sizes: the figures mean nothing")
    parser.add_argument("--output", type=Path, default=RESULTS, help="file that gets a section (bench/RESULTS.md)")
    options = parser.parse_args(arguments)
    plan = plan_for(cpu=options.device == "cpu", tiny=options.tiny)
    if plan is None:
        print("gpu-check: this machine has no NVIDIA GPU that torch can use, so nothing was measured.", file=sys.stderr)
        return NO_GPU
    return 0 if check(plan, options.output) else 1


if __name__ == "__main__":
    sys.exit(main())
