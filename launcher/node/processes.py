"""Which processes belong to a run, and how to end them all: by ancestry, and by a marker in their environment.

A process id alone is never trusted: it is compared with the boot and the start time of the process it was written for.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

RUN_VARIABLE = "TRAINSTACK_RUN"
NODE_VARIABLE = "TRAINSTACK_NODE"

_PROC = Path("/proc")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def boot_id() -> str:
    """Changes when the machine restarts."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return _output(["sysctl", "-n", "kern.boottime"])


def start_time(pid: int) -> str | None:
    """When the process started, in the kernel's own words; None when there is no such process (or only its zombie)."""
    if sys.platform == "linux":
        fields = _stat(pid)
        return fields[19] if fields and fields[0] != "Z" else None
    return _output(["ps", "-o", "lstart=", "-p", str(pid)]) or None


def is_same(pid: int, *, started: str | None, boot: str | None) -> bool:
    """Whether `pid` is still the process that was written down, not a later one with its number."""
    return started is not None and boot == boot_id() and start_time(pid) == started


def marked(run: str, node: str) -> set[int]:
    """Processes with this run's marker in their environment, but ourselves. Sees only our own user's."""
    wanted = {f"{RUN_VARIABLE}={run}", f"{NODE_VARIABLE}={node}"}
    if sys.platform != "linux":
        return _marked_by_ps(wanted)
    found = set()
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                variables = (entry / "environ").read_bytes().split(b"\0")
                if wanted <= {v.decode("utf-8", "replace") for v in variables}:
                    found.add(int(entry.name))
    return {pid for pid in found if start_time(pid) is not None}


def descendants(root: int) -> set[int]:
    """All living processes below `root`."""
    children: dict[int, list[int]] = {}
    if sys.platform == "linux":
        for entry in _PROC.iterdir():
            fields = _stat(int(entry.name)) if entry.name.isdigit() else None
            if fields and fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    else:
        for line in _output(["ps", "-axo", "pid=,ppid="]).splitlines():
            pid, parent = line.split()
            children.setdefault(int(parent), []).append(int(pid))
    found: set[int] = set()
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), []):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def end_all(run: str, node: str, *, below: int | None = None, deadline_s: float = 10.0) -> set[int]:
    """Kills everything of the run on this node, again until nothing is left; returns what would not die in time.

    `below`: also whatever descends from this process (it need not carry the marker).
    """
    deadline = time.monotonic() + deadline_s
    while True:
        alive = marked(run, node) | (descendants(below) if below is not None else set())
        if not alive:
            return set()
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        reap()
        if time.monotonic() > deadline:
            return alive
        time.sleep(0.05)


def reap() -> dict[int, int]:
    """Collects ended children, adopted ones too: pid -> exit code, negative for a signal."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = os.waitstatus_to_exitcode(status)
    return ended


def adopt_orphans() -> None:
    """Makes grandchildren whose parent dies our children (Linux), so that `descendants` misses none."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(number: signal.Signals) -> None:
    """Has the kernel send us `number` when our parent dies (Linux)."""
    _prctl(_PR_SET_PDEATHSIG, int(number))


def command_lines(pids: Iterable[int]) -> dict[int, str]:
    """What each process is, for a message."""
    return {pid: _output(["ps", "-o", "args=", "-p", str(pid)])[:200] for pid in pids}


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/<pid>/stat from the state on: [0] state, [1] parent, [19] start time in ticks since boot."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()  # the name before it may hold blanks and brackets


def _marked_by_ps(wanted: set[str]) -> set[int]:
    found = set()
    for line in _output(["ps", "axeww", "-o", "pid=,command="]).splitlines():
        pid, *words = line.split()
        if wanted <= set(words) and int(pid) != os.getpid():
            found.add(int(pid))
    return found


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
