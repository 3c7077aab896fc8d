"""Whether this machine can be the cluster that is asked for: all that is wrong, before anything is made."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from infra.providers.base import Deployment
from infra.providers.local import sshd
from infra.providers.local.layout import Layout
from infra.spec import ClusterSpec

MAX_NODES = 64
_PER_NODE_MIB, _ROOM_MIB = 16, 64
_BAD_IN_PATH = {":": "a colon", '"': "a double quote", "\\": "a backslash", "\n": "a line break"}
_PACKAGES = {"sshd": "openssh-server", "ssh": "openssh-client"}


def problems(spec: ClusterSpec, deployment: Deployment) -> list[str]:
    """One sentence each."""
    found = []
    if spec.nodes > MAX_NODES:
        found.append(
            f"stacks/{deployment.stack_file.name}, key trainstack:cluster.nodes is {spec.nodes}: "
            f"one machine holds at most {MAX_NODES} local nodes"
        )
    found += _programs()
    found += _path(Layout(deployment))
    found += _disk(Layout(deployment), nodes=min(spec.nodes, MAX_NODES))
    if sys.version_info < (3, 11):  # noqa: UP036  # the nodes run this interpreter
        found.append(f"{sys.executable} is Python {sys.version.split()[0]}: take 3.11 or newer and run `make setup`")
    return found


def _programs() -> list[str]:
    found = [
        f"{program} is not installed: apt-get install {package} (or your system's package)"
        for program, package in _PACKAGES.items()
        if sshd.find(program) is None
    ]
    if shutil.which("uv", path=f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}") is None:
        found.append("uv is not in the project's virtual environment: run `make setup`")
    return found


def _path(layout: Layout) -> list[str]:
    bad = [what for character, what in _BAD_IN_PATH.items() if character in str(layout.folder)]
    if bad:
        return [f"the checkout's path {str(layout.folder)!r} has {' and '.join(bad)}, which sshd can't take: move it"]
    return []


def _disk(layout: Layout, *, nodes: int) -> list[str]:
    """The nearest folder that exists must be writable with room for the nodes' files (environments need more)."""
    place = layout.folder
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK) or os.statvfs(place).f_flag & os.ST_RDONLY:
        return [f"{place} can't be written to: the nodes' files go below it"]
    free_mib = shutil.disk_usage(place).free >> 20
    needed_mib = _ROOM_MIB + nodes * _PER_NODE_MIB
    if free_mib < needed_mib:
        return [f"{place} has {free_mib} MiB of free disk space, {nodes} node(s) need {needed_mib} MiB: make room"]
    return []
