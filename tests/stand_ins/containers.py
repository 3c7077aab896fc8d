"""Containers as the GPU clouds rent them, in Linux namespaces: what a stand-in lends where a test wants a real one.

A container has the host's programs, and of its own: an address on a network of the test, process 1, and empty folders
where a start command writes (/etc/trainstack, /run, /root). Can't: images, GPUs, limits, restarts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.providers.local import isolation
from infra.providers.local.network import free_subnet, routes, run

HOST = 254  # last byte of the host's address
_INIT = """\
set -e
hostname "$1"
mount -t proc proc /proc
mount -t tmpfs -o size=1g,mode=1777 tmpfs /dev/shm
for folder in /run /root /etc/trainstack; do mount -t tmpfs -o mode=755 tmpfs "$folder"; done
for file in passwd shadow; do mount --bind "$2/$file" "/etc/$file"; done
exec sh -c "$3"
"""


def are_possible() -> bool:
    return isolation.choose()[0] == "namespace"


@dataclass
class Container:
    address: str
    process: subprocess.Popen[bytes]
    log: Path
    namespace: str

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def await_ssh(self, *, deadline_s: float = 60.0) -> None:
        """Returns when its SSH server says who it is."""
        end = time.monotonic() + deadline_s
        while True:
            with contextlib.suppress(OSError), socket.create_connection((self.address, 22), timeout=1) as connection:
                if connection.recv(8).startswith(b"SSH-2.0"):
                    return
            assert self.process.poll() is None, f"the container ended: {self.said}"
            assert time.monotonic() < end, f"no SSH after {deadline_s} s: {self.said}"
            time.sleep(0.05)


class Containers:
    """One network of containers; `with` ends them all."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="containers-"))
        self._mark = self._folder.name[-6:]
        self._bridge = f"c{self._mark}"
        self._subnet = free_subnet(routes(), start=os.getpid())
        self._made: dict[str, Container] = {}

    def __enter__(self) -> Containers:
        Path("/etc/trainstack").mkdir(exist_ok=True)  # to mount on
        run(["ip", "link", "add", self._bridge, "type", "bridge"])
        run(["ip", "addr", "add", f"{self.host}/{self._subnet.prefixlen}", "dev", self._bridge])
        run(["ip", "link", "set", self._bridge, "up"])
        return self

    def __exit__(self, *_: object) -> None:
        for id_ in list(self._made):
            self.end(id_)
        run(["ip", "link", "delete", self._bridge])
        shutil.rmtree(self._folder)

    @property
    def host(self) -> str:
        """Where a container reaches servers of this machine that listen there."""
        return str(self._subnet.network_address + HOST)

    def start(self, id_: str, command: str, environment: Mapping[str, str], *, hostname: str = "pod") -> Container:
        """A container whose first process is `sh -c command`."""
        number = len(self._made) + 1
        address = str(self._subnet.network_address + number)
        namespace, folder = f"c{self._mark}{number}", self._folder / str(number)
        folder.mkdir()
        for name in ("passwd", "shadow"):
            shutil.copy(f"/etc/{name}", folder / name)
        (folder / "init").write_text(_INIT)
        run(["ip", "netns", "add", namespace])
        cable = ["type", "veth", "peer", "name", "eth0", "netns", namespace]
        run(["ip", "link", "add", f"{self._bridge}-{number}", *cable])
        run(["ip", "link", "set", f"{self._bridge}-{number}", "master", self._bridge, "up"])
        run(["ip", "-n", namespace, "addr", "add", f"{address}/{self._subnet.prefixlen}", "dev", "eth0"])
        for link in ("eth0", "lo"):
            run(["ip", "-n", namespace, "link", "set", link, "up"])
        enter = [
            "ip",
            "netns",
            "exec",
            namespace,
            "unshare",
            "--uts",
            "--ipc",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child=KILL",
        ]
        log = folder / "log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [*enter, "sh", str(folder / "init"), hostname, str(folder), command],
                env={"PATH": os.environ["PATH"], **environment},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._made[id_] = Container(address, process, log, namespace)
        return self._made[id_]

    def end(self, id_: str) -> None:
        container = self._made.pop(id_, None)
        if container is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(container.process.pid, signal.SIGKILL)
        container.process.wait()
        run(["ip", "netns", "delete", container.namespace])
