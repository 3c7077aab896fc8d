"""Real sshds on loopback ports, a Cluster that describes them, and waiting for what is to happen."""

from __future__ import annotations

import getpass
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from infra.cluster import VERSION, Cluster, Endpoint, Node, Price


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


def alive(pid: int) -> bool:
    """Runs still; a zombie that nobody has collected yet doesn't."""
    out = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(out.strip()) and not out.strip().startswith("Z")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], what: str, *, within_s: float = 15) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} didn't happen within {within_s} s"
        time.sleep(0.02)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        try:
            probe.connect(("127.0.0.1", port))
            return probe.recv(4) == b"SSH-"
        except OSError:
            return False


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
