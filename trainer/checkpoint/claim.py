"""Who writes to a place for checkpoints: two runs in one folder would mix their files and remove each other's.

The newest start has the place, and an older one learns of it before it writes again; but a start is refused while the
process that has the place is alive on the same host. A note in the place says who it is: locks would outlive a lost
node on shared storage, and object storage has none.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from trainer import strict_json

NOTE = ".writer.json"


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

    host: str
    pid: int | None
    started: int  # of the process, in clock ticks since the machine's start: a pid may be used again
    launch: str  # torchrun's run id
    since: float  # Unix time
    afresh: bool = False  # this launch has moved earlier checkpoints aside

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.since))
        return f"process {self.pid} on {self.host}, since {when} UTC"


class Claim:
    """This process's hold on a place."""

    def __init__(self, place: Noted) -> None:
        """Raises OSError when another process on this host has the place and is alive."""
        self._place = place
        before = _parse(place.read_note())
        me = os.getpid()
        if before and before.pid not in (None, me) and before.host == socket.gethostname() and _is_alive(before):
            raise OSError(f"another run writes there, {before}: stop it first, or use another output_dir")
        launch = os.environ.get("TORCHELASTIC_RUN_ID", "")
        restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        again = before is not None and before.launch == launch and (restarted or launch not in ("", "none"))
        self._mine = Writer(
            host=socket.gethostname(),
            pid=me,
            started=_start_of(me) or 0,
            launch=launch,
            since=time.time(),
            afresh=before is not None and again and before.afresh,
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
        if now is not None and (now.host, now.pid, now.started) != self._identity:
            raise OSError(f"another run has taken over {self._place.place}, {now}: this one writes nothing more there")

    def release(self) -> None:
        """Raises OSError."""
        now = _parse(self._place.read_note())
        if now is not None and (now.host, now.pid, now.started) == self._identity:
            self._place.write_note(_encode(replace(self._mine, pid=None)))

    @property
    def _identity(self) -> tuple[str, int | None, int]:
        return self._mine.host, self._mine.pid, self._mine.started

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


def _is_alive(writer: Writer) -> bool:
    return writer.pid is not None and _start_of(writer.pid) == writer.started


def _start_of(pid: int) -> int | None:
    """Clock ticks; None for a process that is gone or dead and only not yet waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
