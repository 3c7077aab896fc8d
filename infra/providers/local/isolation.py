"""Which isolation this machine allows, and what a namespaced node does before its sshd starts."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from infra.providers.local import sshd
from infra.providers.local.layout import NodeLayout

Mode = Literal["namespace", "loopback"]

_UNSHARE = ("unshare", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child=KILL")
_PROBE = (
    "mount -t proc proc /proc && mount -t tmpfs tmpfs /dev/shm && ip link add name probe type bridge && "
    "ip link add name veth0 type veth peer name veth1"
)


def choose() -> tuple[Mode, str]:
    """The best mode, and why it is not a better one ("" for namespace mode). Leaves nothing behind."""
    if not sys.platform.startswith("linux"):
        return "loopback", f"{sys.platform} has no network namespaces"
    if os.geteuid() != 0:
        return "loopback", "network namespaces need root"
    missing = [program for program in ("ip", "unshare", "nsenter", "mount") if sshd.find(program) is None]
    if missing:
        return "loopback", f"{', '.join(missing)} is not installed (apt-get install iproute2 util-linux)"
    probe = subprocess.run(
        [_UNSHARE[0], "--net", *_UNSHARE[1:], "sh", "-c", _PROBE],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if probe.returncode == 0:
        probe = subprocess.run(
            ["ip", "netns", "list"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    if probe.returncode != 0:
        return "loopback", f"this machine refuses namespaces ({' '.join(probe.stderr.split())[:200]})"
    return "namespace", ""


def enter(node: NodeLayout) -> list[str]:
    """The command that becomes the node: init.sh in fresh namespaces. Ending the outer process ends all of it."""
    return ["ip", "netns", "exec", node.namespace, *_UNSHARE, "sh", str(node.etc / "init.sh")]


def init_script(node: NodeLayout, *, command: Sequence[str], shm_bytes: int, hidden: Sequence[Path]) -> str:
    """The shell script that is process 1 of a namespaced node until it becomes `command`."""
    etc = node.etc
    lines = ["set -e", shlex.join(["hostname", node.name]), "mount -t proc proc /proc"]
    lines.append(f"mount -t tmpfs -o size={shm_bytes},mode=1777 tmpfs /dev/shm")
    for name in ("passwd", "shadow", "hosts"):
        lines.append(shlex.join(["mount", "--bind", str(etc / name), f"/etc/{name}"]))
    if not _needed_below("/tmp", node):  # noqa: S108
        lines.append(shlex.join(["mount", "--bind", str(node.tmp), "/tmp"]))  # noqa: S108
    if not _needed_below("/run", node):
        # No systemd, no container engine and no agent of the host's; and sshd wants its own folder there.
        lines.append("mount -t tmpfs -o mode=755 tmpfs /run")
    lines.append("mkdir -p /run/sshd")
    for path in hidden:
        lines.append(shlex.join(hide(path)))
    lines.append("exec " + shlex.join(command))
    return "\n".join(lines) + "\n"


def hide(path: Path) -> list[str]:
    """The command that makes a folder empty, or a file empty, for the mount namespace it runs in.

    Each of the others' folders is covered, rather than our own one bound: hard links (uv's) don't cross mounts.
    """
    if path.is_dir():
        return ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(path)]
    return ["mount", "--bind", "/dev/null", str(path)]


def _needed_below(folder: str, node: NodeLayout) -> bool:
    """Whether the node needs something of the host's that lies under `folder`."""
    needed = [node.folder, Path(sys.executable).resolve(), Path(sys.prefix)]
    return any(path.is_relative_to(folder) or path.is_relative_to(Path(folder).resolve()) for path in needed)
