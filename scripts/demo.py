"""`make demo`: the README's commands, one after the other, on this machine, and a table of what they did.

It types what a person would type (pulumi, fab) in sub-processes, so that the demo can't work where the product doesn't.
Every command's output goes through; the figures come from the run's own metrics.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.pulumi_engine import environment
from infra.stack import project_root, read_cluster

STACK = "local"
RECIPE = "trainer/recipes/demo.yaml"
EXPERIMENT = "demo"
STOP_AFTER = 0.5
"""Share of the run after which the demo stops it, to resume it."""
STEP = re.compile(r"step\s+(\d+)\s*/\s*(\d+)")


class DemoError(Exception):
    """A command of the demo failed; the sentence says which and what to do."""


@dataclass(frozen=True)
class Figures:
    """What the closing table tells. Losses in nats per byte."""

    steps: int
    stopped_at: int
    before: float
    after: float
    first_loss: float
    last_loss: float
    held_out: float
    unigram: float
    tokens_per_s: float
    first_step_s: float


def main() -> int:
    root = project_root()
    began = time.monotonic()
    try:
        figures = play(root)
    except DemoError as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted; `make destroy` removes what it made", file=sys.stderr)
        return 130
    print(f"\nIt all took {time.monotonic() - began:.0f} s.")
    if not figures.held_out < figures.unigram - 0.5:
        print(
            f"demo: the held-out loss {figures.held_out:.3f} is not well below the byte-unigram model's "
            f"{figures.unigram:.3f}: the model did not learn; keep .trainstack/runs and report it",
            file=sys.stderr,
        )
        return 1
    return 0


def play(root: Path) -> Figures:
    """The whole demo; raises DemoError at the first command that fails."""
    heading("1. The cluster: pulumi up")
    command(
        root, "pulumi", "up", "--stack", STACK, "--yes", "--skip-preview", "--suppress-outputs", "--non-interactive"
    )
    heading("2. Verified nodes: fab bootstrap")
    command(root, "fab", "bootstrap", "--stack", STACK)
    unigram = baseline(root)
    train = ("fab", "train", "--stack", STACK, "--recipe", RECIPE, "--name", EXPERIMENT)
    heading("3. Training under FSDP on both nodes, stopped in the middle")
    began = time.time()
    stop_in_the_middle(root, train)
    first = newest_events(root)
    heading("4. The same command again: it goes on from the checkpoint")
    command(root, *train)
    second = newest_events(root)
    figures = read_figures(first, second, unigram=unigram, began=began)
    picture = draw(root, first, second, figures)
    cluster = read_cluster(root, STACK)
    heading("5. The end of it: make destroy")
    command(root, sys.executable, "-m", "infra.destroy", "--stack", STACK)
    print(table(figures, nodes=len(cluster.nodes), world=cluster.world_size))
    print(f"\nLoss curve: {picture}")
    return figures


def heading(text: str) -> None:
    print(f"\n━━ {text} {'━' * max(0, 90 - len(text))}", flush=True)


def command(root: Path, *argv: str) -> None:
    """Run one command, its output going through. Raises DemoError when it fails."""
    print("$ " + " ".join("python" if part == sys.executable else part for part in argv), flush=True)
    done = subprocess.run(argv, cwd=root, env=environment(root), stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise DemoError(
            f"`{' '.join(argv)}` ended with exit code {done.returncode}: its last lines above say why; "
            "`make destroy` removes what is there"
        )


def baseline(root: Path) -> float:
    """Held-out loss of a byte-unigram model on the same split, in nats per byte."""
    argv = [sys.executable, "-m", "trainer", "baseline", RECIPE, "--json"]
    done = subprocess.run(argv, cwd=root, env=environment(root), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DemoError(f"the byte-unigram baseline failed: {done.stderr.strip()}")
    loss = float(json.loads(done.stdout)["held_out_loss"])
    print(f"A byte-unigram model has a held-out loss of {loss:.3f} nats per byte: the one to beat.")
    return loss


def stop_in_the_middle(root: Path, train: Sequence[str]) -> None:
    """Start the run, and `fab stop` it from beside once half of its steps are done."""
    print("$ " + " ".join(train), flush=True)
    follower = subprocess.Popen(
        train,
        cwd=root,
        env=environment(root),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    stopper: threading.Thread | None = None
    for line in follower.stdout or ():
        sys.stdout.write(line)
        sys.stdout.flush()
        found = STEP.search(line)
        if stopper is None and found and int(found[1]) >= STOP_AFTER * int(found[2]):
            # Beside the follower, which goes on printing: as from a second terminal.
            stopper = threading.Thread(target=command, args=(root, "fab", "stop", "--stack", STACK))
            stopper.start()
    code = follower.wait()
    if stopper is not None:
        stopper.join()
    if code != 75:
        raise DemoError(f"`fab train` should have ended with 75 (stopped with a checkpoint), it ended with {code}")


def newest_events(root: Path) -> list[dict[str, Any]]:
    """The metrics of the newest run."""
    runs = sorted((root / ".trainstack" / "runs").glob("*/metrics.jsonl"), key=lambda path: path.stat().st_mtime)
    if not runs:
        raise DemoError("the run left no metrics: `fab logs` shows what it said")
    return [json.loads(line) for line in runs[-1].read_text(encoding="utf-8").splitlines()]


def read_figures(
    first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]], *, unigram: float, began: float
) -> Figures:
    """The figures from the events of the stopped run and of all (metrics go on over a resume)."""
    before = [event for event in first if event["event"] == "step"]
    after = [event for event in second if event["event"] == "step" and event["step"] > before[-1]["step"]]
    evals = [event for event in second if event["event"] == "eval"]
    if not before or not after or not evals:
        raise DemoError("the resumed run has no steps after the stopped one's: `fab logs` shows why")
    speeds = sorted(event["tokens_per_s"] for event in after if event.get("tokens_per_s"))
    mean = lambda events: sum(event["loss"] for event in events) / len(events)  # noqa: E731
    return Figures(
        steps=after[-1]["step"],
        stopped_at=before[-1]["step"],
        before=mean(before[-10:]),
        after=mean(after[:10]),
        first_loss=before[0]["loss"],
        last_loss=after[-1]["loss"],
        held_out=evals[-1]["loss"],
        unigram=unigram,
        tokens_per_s=speeds[len(speeds) // 2],
        first_step_s=before[0]["time"] - began,
    )


def table(figures: Figures, *, nodes: int, world: int) -> str:
    rows = [
        ("nodes × processes", f"{nodes} × {world // nodes}"),
        ("strategy", "fsdp"),
        ("steps", f"{figures.steps} (stopped at {figures.stopped_at}, resumed)"),
        ("training loss, first → last", f"{figures.first_loss:.3f} → {figures.last_loss:.3f}"),
        ("10 steps before the stop → after", f"{figures.before:.3f} → {figures.after:.3f}"),
        ("held-out loss (nats per byte)", f"{figures.held_out:.3f}"),
        ("byte-unigram model", f"{figures.unigram:.3f}"),
        ("tokens/s (median step)", f"{figures.tokens_per_s:,.0f}"),
        ("seconds to first step", f"{figures.first_step_s:.1f}"),
        ("cost", "$0.00 (your own machine)"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n" + "\n".join(f"  {name:<{width}}  {value}" for name, value in rows)


def draw(root: Path, first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]], figures: Figures) -> Path:
    """The loss curve over the stop, with the held-out losses and the unigram line, as PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    folder = root / ".trainstack" / "demo"
    folder.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(figsize=(8, 4.5), dpi=130, layout="constrained")
    for events, label, colour in ((second, "after the resume", "#c2571a"), (first, "before the stop", "#1a5fb4")):
        steps = [event for event in events if event["event"] == "step"]
        axes.plot([e["step"] for e in steps], [e["loss"] for e in steps], label=label, color=colour, linewidth=1)
    evals = [event for event in second if event["event"] == "eval"]
    axes.plot([e["step"] for e in evals], [e["loss"] for e in evals], "o-", color="#26a269", label="held out")
    axes.axhline(figures.unigram, color="grey", linestyle="--", label="byte-unigram model, held out")
    axes.axvline(figures.stopped_at, color="grey", linewidth=0.8)
    axes.annotate("stopped, resumed", (figures.stopped_at, axes.get_ylim()[1]), ha="right", va="top", rotation=90)
    axes.set(xlabel="step", ylabel="loss (nats per byte)", title="make demo: FSDP on 2 nodes × 2 processes")
    axes.legend(frameon=False)
    path = folder / "loss.png"
    figure.savefig(path)
    plt.close(figure)
    return path


if __name__ == "__main__":
    sys.exit(main())
