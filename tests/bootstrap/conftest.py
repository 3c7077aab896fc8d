"""Real sshds on loopback ports: one a node, unprivileged where we are, and a Cluster that describes them."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from infra.cluster import VERSION, Cluster, Endpoint, Node, Price

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running sshd."""

    port: int
    host_key: str
    folder: Path
    process: subprocess.Popen[bytes]

    def sessions(self) -> list[int]:
        """Process ids of the sshds that serve one connection each."""
        out = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        pairs = [tuple(map(int, line.split())) for line in out.splitlines()]
        return [pid for pid, parent in pairs if parent == self.process.pid]

    def log(self) -> str:
        return (self.folder / "sshd.log").read_text("utf-8", "replace")


def make_key(path: Path, *, passphrase: str = "") -> str:
    """An ed25519 key pair; returns the public half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "test", "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return " ".join(path.with_name(path.name + ".pub").read_text().split()[:2])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], what: str, *, within_s: float = 15) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} didn't happen within {within_s} s"
        time.sleep(0.02)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        try:
            probe.connect(("127.0.0.1", port))
            return probe.recv(4) == b"SSH-"
        except OSError:
            return False


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout's folder with a stack's key; its name has what paths in the wild have."""
    root = tmp_path / "my projekt ü"
    make_key(root / ".trainstack" / "stacks" / "test" / "id_ed25519")
    return root


@pytest.fixture
def key(root: Path) -> Path:
    return root / ".trainstack" / "stacks" / "test" / "id_ed25519"


@pytest.fixture
def start_sshd(root: Path, key: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts sshds with extra configuration lines; ends them and their sessions afterwards."""
    servers: list[Server] = []

    def start(*lines: str, port: int | None = None, wait: bool = True) -> Server:
        folder = tmp_path / f"sshd-{len(servers)}"
        folder.mkdir()
        port = port or free_port()
        host_key = make_key(folder / "host_key")
        (folder / "authorized_keys").write_text(key.with_suffix(".pub").read_text())
        config = [
            f"Port {port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {folder}/host_key",
            f"AuthorizedKeysFile {folder}/authorized_keys",
            f"PidFile {folder}/pid",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "Subsystem sftp internal-sftp",
            # What the local provider's nodes have: python3 >= 3.11 and uv.
            f'SetEnv PATH="{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin" UV_OFFLINE=1',
            *lines,
        ]
        (folder / "config").write_text("\n".join(config) + "\n")
        process = subprocess.Popen(
            [SSHD, "-D", "-f", str(folder / "config"), "-E", str(folder / "sshd.log")], stdin=subprocess.DEVNULL
        )
        server = Server(port=port, host_key=host_key, folder=folder, process=process)
        servers.append(server)
        if wait:
            wait_until(lambda: answers(port), f"sshd on port {port}")
        return server

    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd's privilege separation folder
    yield start
    for server in servers:
        sessions = server.sessions()
        server.process.terminate()
        server.process.wait(10)
        for pid in sessions:
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                continue


def node_for(server: Server, rank: int, work_dir: Path, *, hidden: bool = False) -> Node:
    """A Node for a server; `hidden`: only reached through the head."""
    where = Endpoint(host="127.0.0.1", port=server.port)
    return Node(
        name=f"node-{rank}",
        provider_id=f"test/{rank}",
        rank=rank,
        public=None if hidden else where,
        private=where,
        user=getpass.getuser(),
        host_key=server.host_key,
        work_dir=str(work_dir / f"node-{rank}"),
        processes=1,
        cpu_threads=1,
    )


def cluster_of(*nodes: Node) -> Cluster:
    now = datetime.now(UTC)
    return Cluster(
        version=VERSION,
        project="trainstack",
        stack="test",
        provider="local",
        region=None,
        zone=None,
        created_at=now,
        expires_at=now + timedelta(hours=1),
        price=Price(usd_per_hour=0.0, source="your own machine", as_of=now),
        shared_storage=None,
        nodes=nodes,
    )


@pytest.fixture
def cluster(start_sshd: Callable[..., Server], tmp_path: Path) -> Cluster:
    """Two nodes that are reached directly."""
    return cluster_of(*(node_for(start_sshd(), rank, tmp_path / "work dir") for rank in range(2)))
