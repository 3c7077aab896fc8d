"""Ends a run on all its nodes: a checkpoint within the grace, then SIGKILL, and no process left behind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bootstrap.fleet import Fleet
from launcher.errors import RunUnreachable
from launcher.nodes import stop_all
from launcher.record import RunRecord
from launcher.status import RunStatus, ask_status, same_machines


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """What `stop` did."""

    status: RunStatus
    did: bool
    """False: there was nothing to stop, which is success too."""


def stop(fleet: Fleet, record: RunRecord, *, root: Path, grace_s: float) -> Stopped:
    """Stops the run wherever it is and waits for its end. Safe to repeat.

    Raises RunUnreachable naming each node that couldn't be asked; the others are stopped.
    """
    if not same_machines(fleet.cluster, record):
        return Stopped(status=ask_status(fleet, record, root=root), did=False)
    did, errors = stop_all(fleet, record, grace_s=grace_s)
    if errors:
        which = "; ".join(f"{name}: {error}" for name, error in sorted(errors.items()))
        raise RunUnreachable(
            f"run {record.id}: not stopped on {len(errors)} of {len(fleet.cluster.nodes)} nodes ({which}): "
            f"repeat `fab stop --run {record.id}`"
        )
    return Stopped(status=ask_status(fleet, record, root=root), did=any(did.values()))
