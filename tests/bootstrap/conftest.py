"""A node is a real sshd on a loopback port; every test has its own, and its own checkout folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.cluster import Cluster
from tests.bootstrap.servers import Server, answers, cluster_of, free_port, make_key, node_for, wait_until

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


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
def start_sshd(key: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
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


@pytest.fixture
def cluster(start_sshd: Callable[..., Server], tmp_path: Path) -> Cluster:
    """Two nodes that are reached directly."""
    return cluster_of(*(node_for(start_sshd(), rank, tmp_path / "work dir") for rank in range(2)))
