"""The run record: what was asked for, here and on every node, so that a run can be told about and repeated."""

from __future__ import annotations

import dataclasses
import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infra.cluster import Cluster
from launcher.errors import NoRunError
from launcher.node.layout import read_json, write_json

VERSION = 1
_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run. JSON both ways; no secret stands in it."""

    id: str
    stack: str
    experiment: str
    created_at: str
    """ISO 8601, UTC."""
    command: tuple[str, ...]
    """What each rank runs after the interpreter: ("-m", "trainer", …) or (script, argument, …)."""
    recipe: str | None
    """The recipe's text as it was, or None for a user's own script."""
    settings: tuple[str, ...]
    """`--set` values, in order."""
    code_digest: str
    environment_digest: str
    """Folder name of the environment: the digest of its lock."""
    cluster: dict[str, Any]
    """Cluster.to_json()."""
    interpreters: dict[str, str]
    """Node name -> the environment's python there."""
    output_dir: str
    """On the nodes: where metrics and checkpoints are."""
    grace_s: float
    """Seconds that ranks get for a last checkpoint after a stop."""
    rendezvous: str = ""
    """[address]:port of the static rendezvous."""
    clock_offsets_s: dict[str, float] = dataclasses.field(default_factory=dict)
    state: str = "preparing"
    """The last state seen from here; a final one never changes, any other must be asked for."""
    why: str = ""
    version: int = VERSION

    def read_cluster(self) -> Cluster:
        """The cluster that the run was started on."""
        return Cluster.from_json(self.cluster)

    def folder_on(self, work_dir: str) -> str:
        """The run's folder on a node."""
        return f"{work_dir}/runs/{self.id}"


def new_id(now: datetime) -> str:
    """Sorts by time; unique enough for two machines that start in one second."""
    return f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def is_id(text: str) -> bool:
    """Whether `text` has the form of `new_id`: only then may it become a part of a path."""
    return _ID.fullmatch(text) is not None


def from_json(value: object) -> RunRecord | None:
    """The record in `value`; None when it isn't one of this version."""
    known = {field.name for field in dataclasses.fields(RunRecord)}
    if not isinstance(value, dict) or value.get("version") != VERSION or set(value) != known:
        return None
    return RunRecord(**value | {key: tuple(value[key]) for key in ("command", "settings")})


class Runs:
    """The run records of a checkout: `.trainstack/runs/`."""

    def __init__(self, root: Path) -> None:
        self.folder = root / ".trainstack" / "runs"

    def path(self, run: str) -> Path:
        return self.folder / run

    def save(self, record: RunRecord) -> None:
        """Atomic; makes the run's folder."""
        path = self.path(record.id)
        path.mkdir(parents=True, exist_ok=True)
        write_json(path / "run.json", dataclasses.asdict(record))

    def forget(self, record: RunRecord) -> None:
        """Removes the run's folder: for a run that never was."""
        shutil.rmtree(self.path(record.id))

    def load(self, run: str) -> RunRecord:
        """The run whose id starts or ends with `run`. NoRunError when there is none, or more than one."""
        found = [name for name in self._names() if name == run or name.startswith(run) or name.endswith(run)]
        if len(found) != 1 and run not in found:
            known = ", ".join(self._names()[-5:]) or "none"
            how = f"{len(found)} runs match" if found else "no run is called"
            raise NoRunError(f"{how} {run!r}: the newest runs are {known} (`fab status` lists them)")
        return self._read(run if run in found else found[0])

    def latest(self, stack: str) -> RunRecord:
        """The stack's newest run; NoRunError when it has none."""
        for record in self.newest_first(stack):
            return record
        raise NoRunError(f"stack {stack} has no run yet: start one with `fab train`")

    def newest_first(self, stack: str) -> Iterator[RunRecord]:
        for name in reversed(self._names()):
            record = self._read(name)
            if record.stack == stack:
                yield record

    def _names(self) -> list[str]:
        return sorted(path.parent.name for path in self.folder.glob("*/run.json"))

    def _read(self, run: str) -> RunRecord:
        path = self.path(run) / "run.json"
        record = from_json(read_json(path))
        if record is None:
            raise NoRunError(f"{path} isn't a run record of this version: remove its folder")
        return record
