"""The end of a run, told: metrics fetched from the head, a short summary, the first failure with its last lines."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bootstrap.errors import BootstrapError
from bootstrap.fleet import Fleet
from launcher.errors import LauncherError, RunFailed, RunLost, RunStopped, RunUnreachable
from launcher.node.layout import write_json
from launcher.record import RunRecord, Runs
from launcher.states import Failure, State
from launcher.status import RunStatus

_ERRORS: dict[State, type[LauncherError]] = {
    "failed": RunFailed,
    "lost": RunLost,
    "unreachable": RunUnreachable,
    "stopped": RunStopped,
}


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Figures of one run from its metrics; None where the metrics don't say."""

    steps: int | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    eval_loss: float | None = None
    tokens_per_s: float | None = None
    """Median over the run's steps."""
    seconds_to_first_step: float | None = None
    """From the command to the end of the first optimizer step."""


def fetch_metrics(fleet: Fleet, record: RunRecord, *, root: Path) -> list[dict[str, Any]]:
    """The events of this run from the head's metrics.jsonl, kept beside the record. Empty when there are none.

    The file in output_dir goes on over resumed runs: events before this run's creation are left out.
    """
    path = f"{record.output_dir}/metrics.jsonl"
    try:
        shell = fleet.shell(fleet.cluster.head.name)
        if not shell.exists(path):
            return []
        data = shell.get_bytes(path)
    except BootstrapError:
        return []  # a summary without figures is better than a lost verdict
    (Runs(root).path(record.id) / "metrics.jsonl").write_bytes(data)
    since = _started(record) + record.clock_offsets_s.get(fleet.cluster.head.name, 0.0) - 1
    return [event for event in parse_events(data) if float(event.get("time", since)) >= since]


def parse_events(data: bytes) -> list[dict[str, Any]]:
    """The objects of a JSONL file; a last line that was cut is left out."""
    events = []
    for line in data.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            events.append(value)
    return events


def summarise(record: RunRecord, events: Sequence[dict[str, Any]], *, offset_s: float) -> Summary:
    """Figures from the trainer's events. `offset_s`: the head's clock minus ours."""
    steps = [event for event in events if event.get("event") == "step"]
    if not steps:
        return Summary()
    evals = [event["loss"] for event in events if event.get("event") == "eval" and "loss" in event]
    speeds = sorted(float(e["tokens_per_s"]) for e in steps if e.get("tokens_per_s"))
    first_at = steps[0].get("time")
    return Summary(
        steps=steps[-1].get("step"),
        first_loss=steps[0].get("loss"),
        last_loss=steps[-1].get("loss"),
        eval_loss=evals[-1] if evals else None,
        tokens_per_s=speeds[len(speeds) // 2] if speeds else None,
        seconds_to_first_step=float(first_at) - offset_s - _started(record) if first_at else None,
    )


def close(fleet: Fleet, status: RunStatus, *, root: Path) -> str:
    """Fetches what the run left, writes report.json, and returns the closing text."""
    record = status.record
    offset = record.clock_offsets_s.get(fleet.cluster.head.name, 0.0)
    events = fetch_metrics(fleet, record, root=root) if _was_on_head(status) else []
    summary = summarise(record, _until(events, status), offset_s=offset)
    folder = Runs(root).path(record.id)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "report.json", {**status.to_json(), "summary": dataclasses.asdict(summary)})
    return closing_text(status, summary)


def _was_on_head(status: RunStatus) -> bool:
    """Whether the head ran it: the metrics of an experiment may be another run's."""
    return any(says.rank == 0 and says.state not in ("absent", "unreachable") for says in status.nodes)


def _until(events: Sequence[dict[str, Any]], status: RunStatus) -> list[dict[str, Any]]:
    """Without what a later run of the same experiment wrote. Both times are the head's clock."""
    ends = [says.facts.get("ended_at") for says in status.nodes if says.rank == 0]
    end = float(ends[0]) + 1 if ends and ends[0] else math.inf
    return [event for event in events if float(event.get("time", 0.0)) <= end]


def closing_text(status: RunStatus, summary: Summary) -> str:
    """A few lines for people."""
    lines = [f"run {status.record.id}: {status.verdict.state} ({status.verdict.why})"]
    figures = [
        _figure("step", summary.steps, "{:d}"),
        _figure("loss", summary.first_loss, "{:.4f}"),
        _figure("->", summary.last_loss, "{:.4f}"),
        _figure("held-out loss", summary.eval_loss, "{:.4f}"),
        _figure("tokens/s", summary.tokens_per_s, "{:,.0f}"),
        _figure("seconds to first step", summary.seconds_to_first_step, "{:.1f}"),
    ]
    if any(figures):
        lines.append("  " + "  ".join(f for f in figures if f))
    lines += _failure_text(status.verdict.first, status.verdict.consequences)
    return "\n".join(lines)


def raise_for(status: RunStatus) -> None:
    """The error that carries the exit code of a run which isn't finished; nothing for one that is (or still runs)."""
    error = _ERRORS.get(status.verdict.state)
    if error is not None:
        run = status.record.id
        hint = {
            "failed": f"see `fab logs --run {run}`",
            "lost": f"clear what is left with `fab stop --run {run}`, then repeat the same `fab train`: it resumes",
            "unreachable": f"ask again with `fab status --run {run}`",
            "stopped": "repeat the same `fab train` to go on from its checkpoint",
        }[status.verdict.state]
        raise error(f"run {run} {status.verdict.state}: {status.verdict.why}: {hint}")


def _failure_text(first: Failure | None, consequences: Sequence[str]) -> list[str]:
    if first is None:
        return []
    when = datetime.fromtimestamp(first.at).astimezone().strftime("%H:%M:%S")
    lines = [f"  first failure, {when}: {first}; its last lines:"]
    lines += [f"    {line}" for line in first.lines] or ["    (no output)"]
    lines += [f"  consequence: {text}" for text in consequences]
    return lines


def _figure(name: str, value: float | int | None, form: str) -> str:
    return f"{name} {form.format(value)}" if value is not None else ""


def _started(record: RunRecord) -> float:
    return datetime.fromisoformat(record.created_at).timestamp()
