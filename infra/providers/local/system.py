"""What this machine says is there of a local stack.

Reads /proc, /sys and /run only; knows no Pulumi state, changes nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from infra.errors import ProviderError
from infra.providers.base import Leftover
from infra.providers.local.layout import MARKER, Layout

_PROC = Path("/proc")
_LISTENING = "0A"  # of /proc/net/tcp


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process of a stack's node."""

    pid: int
    node: str
    """The node's name; "" for a descendant or namespace member whose own environment no longer says."""
    command: str
    is_guard: bool


def namespaces() -> set[str]:
    """Names of network namespaces: what `ip netns list` prints."""
    try:
        return {path.name for path in Path("/run/netns").iterdir()}
    except OSError:
        return set()


def links() -> set[str]:
    """Names of the host's network interfaces."""
    try:
        return {path.name for path in Path("/sys/class/net").iterdir()}
    except OSError:
        return set()


def processes(layout: Layout) -> list[Process]:
    """All processes of the stack's nodes, guards first (ending one ends its node).

    Found by the marker in the environment; then those below them (sshd writes its title over its environment),
    sshd above them (a session whose guard was killed), and whoever is inside a namespace of ours.
    """
    everyone = list(_all_processes())
    marked = {each.pid: each.marker for each in everyone if each.marker.startswith(layout.marker_prefix)}
    members = {each.pid for each in everyone} & set(_in_namespaces(layout))
    parent = {each.pid: each.parent for each in everyone}
    command = {each.pid: each.command for each in everyone}
    found = set(marked) | members
    for pid in marked:
        above = parent.get(pid, 0)
        while command.get(above, "").startswith("sshd"):
            found.add(above)
            above = parent.get(above, 0)
    while below := {pid for pid, above in parent.items() if above in found} - found:
        found |= below
    own = {os.getpid(), os.getppid()}
    return sorted(
        (
            Process(
                pid=pid,
                node=marked.get(pid, "").removeprefix(layout.marker_prefix),
                command=command[pid],
                is_guard=pid in marked and "guard.py" in command[pid],
            )
            for pid in found - own
        ),
        key=lambda process: (not process.is_guard, process.pid),
    )


def first_processes(layout: Layout) -> list[int]:
    """Host pids of the processes that are number 1 inside a running node (namespace mode)."""
    return [process.pid for process in processes(layout) if _pids_inside(process.pid)[-1:] == ["1"]]


def listening_ports(layout: Layout) -> list[tuple[int, str]]:
    """Each TCP address that a process of the stack listens on, with the process. Linux only; else empty."""
    found = []
    for process in processes(layout):
        inodes = _socket_inodes(process.pid)
        found += [(process.pid, address) for address, inode in _listeners(process.pid) if inode in inodes]
    return found


def leftovers(layout: Layout) -> list[Leftover]:
    """Everything of the stack that is on this machine, in the order of removal."""
    found = [("process", str(process.pid), process.command[:80]) for process in processes(layout)]
    found += [("port", address, f"process {pid}") for pid, address in listening_ports(layout)]
    found += [("link", name, "ip link show " + name) for name in sorted(links()) if name == layout.link]
    found += [
        ("namespace", name, f"ip netns pids {name}")
        for name in sorted(namespaces())
        if name.startswith(layout.namespace_prefix)
    ]
    if layout.folder.exists():
        found.append(("folder", str(layout.folder), "the nodes' disks"))
    return [Leftover(kind=kind, id=key, detail=detail, usd_per_hour=0.0) for kind, key, detail in found]


@dataclass(frozen=True)
class _Seen:
    pid: int
    parent: int
    marker: str
    command: str


def _all_processes() -> Iterator[_Seen]:
    if not sys.platform.startswith("linux"):
        yield from _from_ps()
        return
    wanted = MARKER.encode() + b"="
    for entry in _PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            stat = (entry / "stat").read_text(errors="replace")
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            state, parent = stat.rpartition(")")[2].split()[:2]
            environment = (entry / "environ").read_bytes()
        except PermissionError:
            environment = b""  # another user's: not ours
        except OSError:
            continue  # ended meanwhile
        if state == "Z":
            continue
        marker = next((each[len(wanted) :] for each in environment.split(b"\0") if each.startswith(wanted)), b"")
        yield _Seen(int(entry.name), int(parent), os.fsdecode(marker), command)


def _from_ps() -> Iterator[_Seen]:
    """The BSDs and macOS: ps prints a process's environment after its arguments."""
    done = subprocess.run(
        ["ps", "-Eaxww", "-o", "pid=,ppid=,command="],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ProviderError(f"`ps -Eaxww` failed, so it can't be said what is there: {done.stderr.strip()}")
    for line in done.stdout.splitlines():
        pid, parent, command = [*line.split(None, 2), "", ""][:3]
        _, _, after = command.partition(f" {MARKER}=")
        if pid.isdecimal() and parent.isdecimal():
            yield _Seen(int(pid), int(parent), after.split(" ")[0], command.partition(f" {MARKER}=")[0])


def _in_namespaces(layout: Layout) -> Iterator[int]:
    """Processes inside the stack's named network namespaces: what `ip netns pids` prints."""
    ours = set()
    for name in namespaces():
        if name.startswith(layout.namespace_prefix):
            try:
                ours.add(Path("/run/netns", name).stat().st_ino)
            except OSError:
                continue
    if not ours:
        return
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            try:
                if (entry / "ns" / "net").stat().st_ino in ours:
                    yield int(entry.name)
            except OSError:
                continue


def _pids_inside(pid: int) -> list[str]:
    """A process's numbers, from the host's pid namespace inwards; one only for a process of the host."""
    try:
        lines = (_PROC / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return []
    inside = next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])
    return inside if len(inside) > 1 else []


def _socket_inodes(pid: int) -> set[str]:
    found = set()
    try:
        for descriptor in (_PROC / str(pid) / "fd").iterdir():
            try:
                target = str(descriptor.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                found.add(target[len("socket:[") : -1])
    except OSError:
        return set()
    return found


def _listeners(pid: int) -> Iterator[tuple[str, str]]:
    """(address, inode) of the listening TCP sockets in the process's network namespace."""
    for table in ("tcp", "tcp6"):
        try:
            lines = (_PROC / str(pid) / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING:
                yield _address(fields[1]), fields[9]


def _address(encoded: str) -> str:
    """ "0100007F:0016" to "127.0.0.1:22"; an IPv6 host is left out, since only the port tells something here."""
    host, _, port = encoded.partition(":")
    shown = ".".join(str(byte) for byte in reversed(bytes.fromhex(host))) if len(host) == 8 else "[::]"
    return f"{shown}:{int(port, 16)}"
