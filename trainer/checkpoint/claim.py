"""Who writes to a place for checkpoints: two runs in one folder would mix their files and remove each other's.

The newest start has the place, and an older one learns of it before it writes again. Only a start beside a living
process of another launch, on the same machine, is refused: that is a command typed twice, and the first one's work
would be lost. In doubt the newest wins. A note in the place says who has it: locks would outlive a lost node on shared
storage, and object storage has none.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from trainer import strict_json

NOTE = ".writer.json"
_UNNAMED = ("", "none")  # no torchrun, or one that was given no --rdzv-id: many launches have these


class Noted(Protocol):
    """A place that keeps the note."""

    place: str

    def read_note(self) -> bytes | None:
        """None: there is none. Raises OSError."""

    def write_note(self, data: bytes) -> None:
        """Replaces it as a whole. Raises OSError."""


@dataclass(frozen=True)
class Writer:
    """A process of a run. pid is None once it has let go of the place."""

    start: str  # this one alone: in containers, hosts, pids and times may be equal
    host: str
    boot: str  # the machine's kernel since its start: a node that replaced another may have its host name
    pid: int | None
    started: int | None  # of the process, in clock ticks since the machine's start: a pid may be used again
    launch: str  # torchrun's run id
    since: float  # Unix time
    afresh: bool = False  # this launch has moved earlier checkpoints aside

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.since))
        return f"process {self.pid} on {self.host}, since {when} UTC"


class Claim:
    """This process's hold on a place."""

    def __init__(self, place: Noted) -> None:
        """Raises OSError when a process of another launch on this machine has the place and is alive."""
        self._place = place
        before = _parse(place.read_note())
        launch = os.environ.get("TORCHELASTIC_RUN_ID", "")
        restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        same_name = before is not None and before.launch == launch
        same_launch = same_name and launch not in _UNNAMED
        if before is not None and not same_launch and _is_another_s(before):
            raise OSError(f"another run writes there, {before}: stop it first, or use another output_dir")
        self._mine = Writer(
            start=secrets.token_hex(8),
            host=socket.gethostname(),
            boot=_boot(),
            pid=os.getpid(),
            started=_start_of(os.getpid()),
            launch=launch,
            since=time.time(),
            afresh=before is not None and before.afresh and (same_launch or (same_name and restarted)),
        )
        self._write()

    @property
    def afresh(self) -> bool:
        """An earlier attempt of this launch has moved earlier checkpoints aside: those there now are its own."""
        return self._mine.afresh

    def began_afresh(self) -> None:
        self._mine = replace(self._mine, afresh=True)
        self._write()

    def check(self) -> None:
        """Raises OSError when another run has taken the place over."""
        now = _parse(self._place.read_note())
        if now is not None and now.start != self._mine.start:
            raise OSError(f"another run has taken over {self._place.place}, {now}: this one writes nothing more there")

    def release(self) -> None:
        """Raises OSError."""
        now = _parse(self._place.read_note())
        if now is not None and now.start == self._mine.start:
            self._place.write_note(_encode(replace(self._mine, pid=None)))

    def _write(self) -> None:
        self._place.write_note(_encode(self._mine))


def _encode(writer: Writer) -> bytes:
    return strict_json.encode(asdict(writer)).encode()


def _parse(data: bytes | None) -> Writer | None:
    """None also for a note that a kill cut short or that somebody else wrote."""
    try:
        values: Any = strict_json.decode(data or b"")
        return Writer(**values)
    except (ValueError, TypeError):
        return None


def _is_another_s(writer: Writer) -> bool:
    """Whether it is certainly a living process of this machine, and not this one."""
    if writer.pid in (None, os.getpid()) or not writer.boot or writer.boot != _boot():
        return False
    return writer.started is not None and _start_of(writer.pid) == writer.started


def _boot() -> str:
    """Empty where the kernel doesn't tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _start_of(pid: int | None) -> int | None:
    """Clock ticks; None for a process that isn't seen here, or that is dead and only not yet waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
