"""What the runs of a stack are doing: asked from the nodes each time, because a file here can't know."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bootstrap.fleet import Fleet
from infra.cluster import Cluster
from infra.errors import ContractError
from infra.stack import read_cluster
from launcher.nodes import ask_all
from launcher.record import RunRecord, Runs
from launcher.states import FINAL, NodeSays, Verdict, judge

SHOWN = 20
"""Runs in the table; `--run` asks for an older one."""


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """One run and what is known of it now."""

    record: RunRecord
    verdict: Verdict
    nodes: tuple[NodeSays, ...] = ()
    """Empty when nobody was asked: the state is final and was recorded."""

    def to_json(self) -> dict[str, Any]:
        """Plain values for `fab status --json`."""
        first = self.verdict.first
        return {
            "run": self.record.id,
            "experiment": self.record.experiment,
            "state": self.verdict.state,
            "why": self.verdict.why,
            "created_at": self.record.created_at,
            "first_failure": dataclasses.asdict(first) if first else None,
            "consequences": list(self.verdict.consequences),
            "nodes": [{"node": n.node, "state": n.state, "why": n.why, "facts": dict(n.facts)} for n in self.nodes],
        }


def stack_status(root: Path, stack: str, records: Sequence[RunRecord]) -> list[RunStatus]:
    """The status of each record. Nodes are asked only about runs whose end isn't recorded; no cluster, no question."""
    if all(record.state in FINAL for record in records):
        return [recorded(record) for record in records]
    try:
        cluster = read_cluster(root, stack)
    except ContractError as error:
        gone = Verdict(state="unreachable", why=f"the cluster can't be read: {error}")
        return [recorded(r) if r.state in FINAL else RunStatus(record=r, verdict=gone) for r in records]
    with Fleet(cluster, root=root, connect_deadline_s=20) as fleet:
        return [recorded(r) if r.state in FINAL else ask_status(fleet, r, root=root) for r in records]


def recorded(record: RunRecord) -> RunStatus:
    """The status of a run whose end is known: it can't change any more."""
    if record.state not in FINAL:
        raise ValueError(f"run {record.id}: {record.state} isn't final")
    return RunStatus(record=record, verdict=Verdict(state=record.state, why=record.why))


def ask_status(fleet: Fleet, record: RunRecord, *, root: Path) -> RunStatus:
    """Asks the nodes, and keeps the answer in the record. An end that is recorded stays, though its nodes be gone."""
    nodes: tuple[NodeSays, ...] = ()
    if same_machines(fleet.cluster, record):
        nodes = tuple(ask_all(fleet, record))
        verdict = judge(nodes)
    else:
        verdict = Verdict(state="lost", why="its machines are gone: the stack has been created anew since")
    if record.state in FINAL and verdict.state in ("lost", "unreachable"):
        verdict = recorded(record).verdict
    return _keep(RunStatus(record=record, verdict=verdict, nodes=nodes), root=root)


def same_machines(cluster: Cluster, record: RunRecord) -> bool:
    """Whether the stack's machines are still those that the run was started on."""
    return [n.host_key for n in cluster.nodes] == [n.host_key for n in record.read_cluster().nodes]


def table(statuses: Sequence[RunStatus]) -> str:
    """For people: a line a run."""
    rows = [("RUN", "EXPERIMENT", "STATE", "AGE", "WHY")]
    for status in statuses:
        record = status.record
        rows.append((record.id, record.experiment, status.verdict.state, _age(record), status.verdict.why))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join("  ".join([*(row[i].ljust(widths[i]) for i in range(4)), row[4]]).rstrip() for row in rows)


def _keep(status: RunStatus, *, root: Path) -> RunStatus:
    record = dataclasses.replace(status.record, state=status.verdict.state, why=status.verdict.why)
    if record != status.record and status.verdict.state != "unreachable":
        Runs(root).save(record)
    return dataclasses.replace(status, record=record)


def _age(record: RunRecord) -> str:
    seconds = int((datetime.now(UTC) - datetime.fromisoformat(record.created_at)).total_seconds())
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{max(0, seconds)} s"
