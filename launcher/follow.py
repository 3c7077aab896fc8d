"""Follows a run: one long-lived stream a node into the local copy of its log, whose size is the offset to go on from.

So a dead terminal, a sleeping laptop or a lost connection costs nothing: the next follower asks for what comes after
the last byte that is here. No line is lost, none is doubled.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bootstrap.errors import BootstrapError, ConnectError, ConnectionLost
from bootstrap.fleet import Fleet
from infra.cluster import Node
from infra.errors import InfraError
from launcher.errors import BusyError, Detached, LauncherError, RunUnreachable
from launcher.nodes import node_command
from launcher.record import RunRecord, Runs

GIVE_UP_S = 300.0
"""A node that can't be reached for so long ends the following (not the run)."""
_STEADY_S = 5.0
"""A stream that held for so long was a connection; one that broke sooner counts as a node out of reach."""
_BACKOFF_S = (1.0, 2.0, 5.0, 10.0)

Line = tuple[str, bytes]
"""(node, whole line without its end)"""


class LocalLog:
    """The local copy of one node's log. `write` may be called by one follower at a time."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("ab")

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def unfinished_line(self) -> bytes:
        """What stands after the last line end."""
        data = self.path.read_bytes()
        return data[data.rfind(b"\n") + 1 :]

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def follow(fleet: Fleet, record: RunRecord, *, root: Path, show: Callable[[str, str], None]) -> None:
    """Shows new lines of all nodes until the run has ended on all of them. `show(node, line)`.

    Raises Detached on Ctrl-C, RunUnreachable when a node stays out of reach.
    """
    nodes = fleet.cluster.nodes
    with _single_follower(Runs(root).path(record.id), record.id):
        lines: queue.Queue[Line | InfraError | None] = queue.Queue()
        stop = threading.Event()
        for node in nodes:
            log = LocalLog(log_path(root, record.id, node.name))
            threading.Thread(
                target=_follow_node,
                args=(fleet, record, node, log, lines, stop),
                name=f"follow {node.name}",
                daemon=True,
            ).start()
        try:
            _print(lines, len(nodes), show)
        except KeyboardInterrupt:
            raise Detached(
                f"detached; run {record.id} goes on: follow it with `fab attach --run {record.id}`, end it with "
                f"`fab stop --run {record.id}`"
            ) from None
        finally:
            stop.set()


def fetch(fleet: Fleet, record: RunRecord, *, root: Path) -> None:
    """Brings the local copies up to now, once. Raises BusyError while a follower is at it: then they are up to date."""
    with _single_follower(Runs(root).path(record.id), record.id):
        logs = {node.name: LocalLog(log_path(root, record.id, node.name)) for node in fleet.cluster.nodes}
        try:
            fleet.on_each(
                lambda shell: shell.stream(
                    node_command(shell.node, record, "cat", str(logs[shell.node.name].size)),
                    logs[shell.node.name].write,
                )
            ).require("fetching the log")
        finally:
            for log in logs.values():
                log.close()


def read_local(root: Path, record: RunRecord, *, node: str | None, rank: int | None) -> Iterator[tuple[str, str]]:
    """(node, line) of the local copies, node by node; `rank`: only lines of that global rank."""
    prefix = b"" if rank is None else b"[rank %d] " % rank
    for known in record.read_cluster().nodes:
        path = log_path(root, record.id, known.name)
        if (node is None or node == known.name) and path.exists():
            with path.open("rb") as file:
                for line in file:
                    if line.startswith(prefix):
                        yield known.name, line.rstrip(b"\n").decode("utf-8", "replace")


def log_path(root: Path, run: str, node: str) -> Path:
    return Runs(root).path(run) / "logs" / f"{node}.log"


def write_line(node: str, line: str) -> None:
    """One line of a node's log on stdout."""
    write_text(f"{node} {line}")


def write_text(text: str) -> None:
    """One text on stdout; a character that the terminal hasn't becomes "?"."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(f"{text}\n".encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def _print(lines: queue.Queue[Line | InfraError | None], streams: int, show: Callable[[str, str], None]) -> None:
    failed: list[InfraError] = []
    while streams:
        item = lines.get()
        if item is None:
            streams -= 1
        elif isinstance(item, InfraError):
            failed.append(item)
            streams -= 1
        else:
            node, line = item
            show(node, line.decode("utf-8", "replace"))
    if failed:
        raise RunUnreachable(f"{failed[0]}: what the run does now isn't known; go on with `fab attach` later")


def _follow_node(
    fleet: Fleet,
    record: RunRecord,
    node: Node,
    log: LocalLog,
    lines: queue.Queue[Line | InfraError | None],
    stop: threading.Event,
) -> None:
    """One node's thread: streams, and streams again after a lost connection."""
    splitter = _Lines(node.name, lines, begun=log.unfinished_line())
    since = time.monotonic()
    tries = 0

    def take(data: bytes) -> None:
        nonlocal since, tries
        since, tries = time.monotonic(), 0
        log.write(data)
        splitter.take(data)

    try:
        while not stop.is_set():
            began = time.monotonic()
            try:
                code = fleet.shell(node.name).stream(node_command(node, record, "tail", str(log.size)), take)
                lines.put(
                    None if code == 0 else RunUnreachable(f"{node.name}: reading the log ended with exit code {code}")
                )
                return
            except (ConnectionLost, ConnectError) as error:
                if isinstance(error, ConnectionLost) and time.monotonic() - began > _STEADY_S:
                    since, tries = time.monotonic(), 0  # it was there until now, though it had nothing to say
                if time.monotonic() - since > GIVE_UP_S:
                    lines.put(error)
                    return
            stop.wait(_BACKOFF_S[min(tries, len(_BACKOFF_S) - 1)])
            tries += 1
    except BootstrapError as error:
        lines.put(error)
    except OSError as error:  # the local copy can't be written: without it no follower could go on
        lines.put(LauncherError(f"{log.path} can't be written ({error.strerror}): make room; the run goes on"))
    finally:
        log.close()


class _Lines:
    """Cuts a stream of bytes into lines. `begun`: what the last follower got of a line that it didn't show."""

    def __init__(self, node: str, lines: queue.Queue[Line | InfraError | None], *, begun: bytes) -> None:
        self._node, self._lines, self._rest = node, lines, begun

    def take(self, data: bytes) -> None:
        *whole, self._rest = (self._rest + data).split(b"\n")
        for line in whole:
            self._lines.put((self._node, line))


@contextlib.contextmanager
def _single_follower(folder: Path, run: str) -> Iterator[None]:
    """The local copies have one writer: a second follower on this machine is refused."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / "follow.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                f"run {run} is followed by another terminal of this machine: look at {folder}/logs, or end that one"
            ) from None
        yield
    finally:
        os.close(descriptor)
