"""Runs through real sshds, with the user's machine as a process of its own that can be killed or badly started."""

from __future__ import annotations

import dataclasses
import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from launcher_nodes import wait_for

from infra.cluster import Cluster, Endpoint
from launcher.follow import log_path
from launcher.node import processes
from launcher.record import RunRecord, Runs

REPOSITORY = Path(__file__).parents[2]
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"

USER = """\
import json, sys
from pathlib import Path
from types import SimpleNamespace
from bootstrap.fleet import Fleet
from infra.cluster import Cluster
from launcher import start
from launcher.follow import follow, write_line
from launcher.record import Runs
from launcher.report import raise_for
from launcher.status import ask_status
from launcher.errors import LauncherError
what, root, cluster, script, code = sys.argv[1:]
root, cluster = Path(root), Cluster.from_json(json.loads(cluster))
prepared = SimpleNamespace(python={n.name: sys.executable for n in cluster.nodes})
tree = SimpleNamespace(digest="0" * 16, path={n.name: code for n in cluster.nodes})
try:
    with Fleet(cluster, root=root) as fleet:
        if what == "train":
            plan = start.plan_script(script, arguments=(), name=None)
            record = start.submit(fleet, plan, root=root, prepared=prepared, code=tree, report=print)
        else:
            record = Runs(root).latest("test")
        follow(fleet, record, root=root, show=write_line)
        raise_for(ask_status(fleet, record, root=root))
except LauncherError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


@pytest.fixture
def ssh_cluster(cluster: Cluster, root: Path, tmp_path: Path) -> Iterator[Cluster]:
    """The two nodes, each behind an sshd of its own on a loopback port."""
    key = root / ".trainstack" / "stacks" / "test" / "id_ed25519"
    servers = []
    nodes = []
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd's privilege separation folder
    make_key(key)
    try:
        for node in cluster.nodes:
            folder = tmp_path / f"sshd-{node.rank}"
            make_key(folder / "host_key")
            port = free_port()
            settings = {
                "Port": port,
                "ListenAddress": "127.0.0.1",
                "HostKey": folder / "host_key",
                "AuthorizedKeysFile": f'"{key}.pub"',
                "PidFile": "none",
                "StrictModes": "no",
                "UsePAM": "no",
                "PasswordAuthentication": "no",
            }
            (folder / "config").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
            servers.append(subprocess.Popen([SSHD, "-D", "-f", folder / "config", "-E", folder / "log"]))
            wait_for(lambda port=port: listens(port), "the sshd")
            where = Endpoint(host="127.0.0.1", port=port)
            host_key = " ".join((folder / "host_key.pub").read_text().split()[:2])
            nodes.append(
                dataclasses.replace(node, public=where, private=where, host_key=host_key, user=getpass.getuser())
            )
        yield cluster.replace(nodes=tuple(nodes))
    finally:
        for server in servers:
            sessions = processes.descendants(server.pid)
            server.terminate()
            server.wait()
            for pid in sessions:
                if processes.start_time(pid):
                    os.kill(pid, 15)


def make_key(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    subprocess.run(words, stdin=subprocess.DEVNULL, check=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class User:
    """Starts the user's machine as a process."""

    def __init__(self, root: Path, cluster: Cluster, script: Callable[[str], Path], code: Any) -> None:
        self.root, self.cluster, self._script = root, cluster, script
        self._code = str(code.path["node-0"])
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, what: str, text: str = "", **options: Any) -> subprocess.Popen[bytes]:
        script = str(self._script(text)) if text else ""
        words = [
            sys.executable,
            "-c",
            USER,
            what,
            str(self.root),
            json.dumps(self.cluster.to_json()),
            script,
            self._code,
        ]
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.started.append(subprocess.Popen(words, cwd=REPOSITORY, **(output | options)))
        return self.started[-1]

    def record(self) -> RunRecord:
        return Runs(self.root).latest("test")


@pytest.fixture
def user(root: Path, ssh_cluster: Cluster, script: Callable[[str], Path], code: Any) -> Iterator[User]:
    made = User(root, ssh_cluster, script, code)
    yield made
    for process in made.started:
        process.kill()
        process.wait()


def test_attach_goes_on_after_the_follower_was_killed(user: User) -> None:
    first = user.start("train", "import time\nfor i in range(150): print('line', i); time.sleep(0.03)")
    assert first.stdout is not None
    wait_for(lambda: b"line 20" in first.stdout.readline(), "some lines")
    first.kill()
    first.wait()
    attach = user.start("attach")
    _, error = attach.communicate(timeout=60)
    assert (attach.returncode, error) == (0, b"")
    record = user.record()
    for node in user.cluster.nodes:
        local = log_path(user.root, record.id, node.name).read_bytes()
        assert local == (Path(record.folder_on(node.work_dir)) / "output.log").read_bytes()
        for rank in (2 * node.rank, 2 * node.rank + 1):
            lines = [line for line in local.splitlines() if line.startswith(b"[rank %d]" % rank)]
            assert lines == [b"[rank %d] line %d" % (rank, i) for i in range(150)]


@pytest.mark.parametrize("stdin", ["closed", "a pipe that never closes", "nothing in the environment"])
def test_the_user_machine_needs_no_terminal_stdin_or_environment(user: User, stdin: str) -> None:
    reader, writer = os.pipe()
    options: dict[str, Any] = {
        "closed": {"preexec_fn": lambda: os.close(0)},
        "a pipe that never closes": {"stdin": reader},
        "nothing in the environment": {"stdin": subprocess.DEVNULL, "env": {}},
    }[stdin]
    try:
        os.write(writer, b"the caller's own\n")
        process = user.start("train", "print('h\\xe9llo'); raise SystemExit(3)", **options)
        output, error = process.communicate(timeout=60)
        assert process.returncode == 1
        assert b"ended with exit code 3" in error
        assert b"llo" in output
        assert user.record().state == "failed"
        assert os.read(reader, 100) == b"the caller's own\n"
    finally:
        os.close(reader)
        os.close(writer)
