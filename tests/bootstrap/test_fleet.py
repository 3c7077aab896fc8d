"""Who is let in, what is retried, and what one node's failure does to the others."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bootstrap.errors import (
    AuthenticationError,
    BootstrapError,
    ConnectError,
    HostKeyError,
    KeyFileError,
    SeveralNodes,
    StepError,
)
from bootstrap.fleet import Fleet
from bootstrap.hosts import ssh_command, write_known_hosts
from infra.cluster import Cluster, Endpoint
from infra.errors import SpecError
from tests.bootstrap.servers import Server, alive, cluster_of, free_port, make_key, names, node_for, wait_until

Start = Callable[..., Server]
PASSPHRASE = "open sesame"  # noqa: S105


def hello(cluster: Cluster, root: Path, name: str = "node-0", *, deadline_s: float = 10) -> bytes:
    with Fleet(cluster, root=root, connect_deadline_s=deadline_s) as fleet:
        return fleet.shell(name).run(["echo", "hello"]).stdout


@pytest.fixture
def other_key(tmp_path: Path) -> str:
    return make_key(tmp_path / "other" / "key")


# --- host keys


def test_another_host_key_is_refused_at_once_with_both_fingerprints(
    cluster: Cluster, root: Path, other_key: str
) -> None:
    changed = dataclasses.replace(cluster.nodes[1], host_key=other_key)
    with pytest.raises(HostKeyError, match=r"node-1: .*SHA256:.*expected ssh-ed25519 SHA256:.*pulumi refresh"):
        hello(cluster.replace(nodes=(cluster.nodes[0], changed)), root, "node-1", deadline_s=3600)


def test_a_host_key_of_another_type_only_is_refused(start_sshd: Start, root: Path, tmp_path: Path) -> None:
    server = start_sshd()
    rsa = tmp_path / "rsa"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(rsa)], check=True)
    key = " ".join(rsa.with_suffix(".pub").read_text().split()[:2])
    node = dataclasses.replace(node_for(server, 0, tmp_path), host_key=key)
    with pytest.raises(HostKeyError, match="node-0"):
        hello(cluster_of(node), root, deadline_s=3600)


def test_a_host_key_that_is_no_key_is_refused(cluster: Cluster, root: Path) -> None:
    broken = dataclasses.replace(cluster.head, host_key="learn it yourself")
    with pytest.raises(HostKeyError, match="node-0: the Cluster's host key 'learn it yourself'"):
        hello(cluster.replace(nodes=(broken, cluster.nodes[1])), root)


def test_a_node_without_public_address_is_reached_through_the_head(
    start_sshd: Start, root: Path, tmp_path: Path
) -> None:
    head, hidden = start_sshd(), start_sshd()
    cluster = cluster_of(node_for(head, 0, tmp_path), node_for(hidden, 1, tmp_path, hidden=True))
    assert hello(cluster, root, "node-1") == b"hello\n"
    assert "Accepted publickey" in head.log()


@pytest.mark.parametrize("changed", [0, 1])
def test_on_the_way_through_the_head_each_host_key_is_verified(
    start_sshd: Start, root: Path, tmp_path: Path, other_key: str, changed: int
) -> None:
    nodes = [node_for(start_sshd(), 0, tmp_path), node_for(start_sshd(), 1, tmp_path, hidden=True)]
    nodes[changed] = dataclasses.replace(nodes[changed], host_key=other_key)
    with pytest.raises(HostKeyError, match=f"node-{changed}: the machine at"):
        hello(cluster_of(*nodes), root, "node-1", deadline_s=3600)


def test_two_nodes_that_are_one_machine_are_refused(cluster: Cluster, root: Path) -> None:
    twin = dataclasses.replace(cluster.nodes[1], public=cluster.head.public)
    with pytest.raises(HostKeyError, match="node-1"):
        hello(cluster.replace(nodes=(cluster.head, twin)), root, "node-1")


# --- the user's side


def test_a_key_with_a_passphrase_is_named(cluster: Cluster, root: Path, key: Path) -> None:
    key.unlink()
    make_key(key, passphrase=PASSPHRASE)
    with pytest.raises(KeyFileError, match=r"id_ed25519 needs a passphrase, .*ssh-keygen -p"):
        hello(cluster, root)


def test_a_public_key_as_the_key_is_named(cluster: Cluster, root: Path, key: Path) -> None:
    key.write_text(key.with_suffix(".pub").read_text())
    with pytest.raises(KeyFileError, match="is a public key"):
        hello(cluster, root)


def test_a_putty_key_is_named(cluster: Cluster, root: Path, key: Path) -> None:
    key.write_text("PuTTY-User-Key-File-3: ssh-ed25519\n")
    with pytest.raises(KeyFileError, match="is a PuTTY key"):
        hello(cluster, root)


def test_a_key_that_is_open_to_others_is_named(cluster: Cluster, root: Path, key: Path) -> None:
    key.chmod(0o644)
    with pytest.raises(KeyFileError, match=r"mode 0644.*chmod 600"):
        hello(cluster, root)


def test_a_missing_or_garbled_key_is_named(cluster: Cluster, root: Path, key: Path) -> None:
    key.write_text("not a key\n")
    with pytest.raises(KeyFileError, match="isn't a private key"):
        hello(cluster, root)
    key.unlink()
    with pytest.raises(KeyFileError, match="isn't there"):
        hello(cluster, root)


def test_the_users_keys_and_ssh_config_do_not_count(
    cluster: Cluster, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_key(tmp_path / "home" / ".ssh" / "id_ed25519", passphrase=PASSPHRASE)
    config = "Match localnetwork 9.8.7.0/24\nHost *\n  User nobody\n  Port 1\n  ProxyJump nowhere\n  Nonsense\n"
    (tmp_path / "home" / ".ssh" / "config").write_text(config)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert hello(cluster, root) == b"hello\n"
    words = ssh_command(cluster, cluster.head, ["echo", "a b"], root=root)
    assert subprocess.run(words, capture_output=True, check=True, stdin=subprocess.DEVNULL).stdout == b"a b\n"


def test_an_ipv6_address_is_fine(start_sshd: Start, root: Path, tmp_path: Path) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 here")
    server = start_sshd("ListenAddress ::1")
    node = node_for(server, 0, tmp_path)
    node = dataclasses.replace(node, public=Endpoint(host="::1", port=server.port))
    assert hello(cluster_of(node), root) == b"hello\n"
    words = ssh_command(cluster_of(node), node, ["echo", "six"], root=root)
    assert subprocess.run(words, capture_output=True, check=True, stdin=subprocess.DEVNULL).stdout == b"six\n"


def test_no_stdin_and_no_locale_are_needed(cluster: Cluster, root: Path, tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(json.dumps(cluster.to_json()))
    program = textwrap.dedent("""
        import json, sys
        from pathlib import Path
        from bootstrap.fleet import Fleet
        from infra.cluster import Cluster
        cluster = Cluster.from_json(json.loads(Path(sys.argv[1]).read_text()))
        with Fleet(cluster, root=Path(sys.argv[2])) as fleet:
            print(fleet.on_each(lambda s: s.run(["cat"]).exit_code).require("it"))
    """)
    words = [sys.executable, "-c", program, str(tmp_path / "cluster.json"), str(root)]
    bare = ["env", "-i", "LC_ALL=C", "PYTHONUTF8=0", "sh", "-c", 'exec "$@" <&-', "sh", *words]
    done = subprocess.run(bare, capture_output=True, check=False, cwd=Path(__file__).parents[2], timeout=60)
    assert (done.stdout, done.stderr) == (b"{'node-0': 0, 'node-1': 0}\n", b"")


# --- readiness


def test_a_refused_key_is_an_authentication_error_and_no_timeout(cluster: Cluster, root: Path, key: Path) -> None:
    key.unlink()
    make_key(key)
    with pytest.raises(AuthenticationError, match=r"node-0: .* refuses the stack's key"):
        hello(cluster, root, deadline_s=2)


def test_a_closed_port_is_retried_until_the_deadline(root: Path, cluster: Cluster) -> None:
    closed = dataclasses.replace(cluster.head, public=Endpoint(host="127.0.0.1", port=free_port()))
    with pytest.raises(ConnectError, match=r"node-0: no SSH login at \[127.0.0.1\]:\d+ within 1 s: nothing listens"):
        hello(cluster.replace(nodes=(closed, cluster.nodes[1])), root, deadline_s=1)


def test_a_machine_that_boots_is_awaited_through_every_phase(start_sshd: Start, root: Path, tmp_path: Path) -> None:
    """Refused, then accepting without a banner, then hanging up, then sshd without our key, then with it."""
    port = free_port()
    probe = start_sshd()  # only for a Node; another server takes its key and the port below
    (probe.folder / "authorized_keys").rename(probe.folder / "later")
    node = dataclasses.replace(node_for(probe, 0, tmp_path), public=Endpoint(host="127.0.0.1", port=port))
    result: list[bytes | BootstrapError] = []

    def connect() -> None:
        try:
            result.append(hello(cluster_of(node), root, deadline_s=40))
        except BootstrapError as error:
            result.append(error)

    with socket.socket() as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(("127.0.0.1", port))  # bound and not listening: refused
        client = threading.Thread(target=connect)
        client.start()
        door.settimeout(20)
        client.join(0.5)
        door.listen()
        for _ in range(2):
            caller, _ = door.accept()
            caller.recv(100)  # the client's banner; ours never comes
            caller.close()
        with forwarding(door, probe.port):
            wait_until(lambda: "Connection closed by authenticating user" in probe.log(), "a refused login")
            (probe.folder / "later").rename(probe.folder / "authorized_keys")
            client.join(30)
    assert result == [b"hello\n"]


@contextlib.contextmanager
def forwarding(door: socket.socket, port: int) -> Iterator[None]:
    """Passes what comes to `door` on to a local port."""
    open_sockets: list[socket.socket] = []

    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = door.accept()
                callee = socket.create_connection(("127.0.0.1", port))
                open_sockets.extend((caller, callee))
                for pair in ((caller, callee), (callee, caller)):
                    threading.Thread(target=copy, args=pair, daemon=True).start()

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            door.shutdown(socket.SHUT_RDWR)
        server.join(5)
        for item in open_sockets:
            item.close()


def test_connections_that_maxstartups_drops_come_back(start_sshd: Start, root: Path, tmp_path: Path) -> None:
    server = start_sshd("MaxStartups 2:100:3")
    cluster = cluster_of(node_for(server, 0, tmp_path))
    answers: list[bytes] = []
    threads = [threading.Thread(target=lambda: answers.append(hello(cluster, root, deadline_s=30))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert answers == [b"hello\n"] * 8


# --- all of them


def test_one_failing_node_does_not_hide_the_others(cluster: Cluster, root: Path) -> None:
    def work(shell: object) -> str:
        name: str = shell.node.name  # type: ignore[attr-defined]
        if name == "node-1":
            raise StepError("node-1: no luck")
        return name

    with Fleet(cluster, root=root) as fleet:
        outcomes = fleet.on_each(work)
    assert outcomes.results == {"node-0": "node-0"}
    assert list(outcomes.errors) == ["node-1"]
    with pytest.raises(StepError, match="no luck"):
        outcomes.require("the work")


def test_several_failures_are_one_error_that_names_each_node(cluster: Cluster, root: Path) -> None:
    def work(_: object) -> None:
        raise SpecError("bad wish")  # an error of another part of ours counts as the node's

    with Fleet(cluster, root=root) as fleet:
        outcomes = fleet.on_each(work)
    with pytest.raises(
        SeveralNodes, match=r"(?s)the work failed on 2 nodes \(node-0, node-1\).*bad wish.*bad wish"
    ) as error:
        outcomes.require("the work")
    assert error.value.exit_code == SpecError.exit_code


def test_a_bug_in_the_function_is_raised_as_it_is(cluster: Cluster, root: Path) -> None:
    with Fleet(cluster, root=root) as fleet, pytest.raises(ZeroDivisionError):
        fleet.on_each(lambda _: 1 / 0)


def test_ctrl_c_ends_it_here_and_on_the_nodes(cluster: Cluster, root: Path, tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(json.dumps(cluster.to_json()))
    program = textwrap.dedent("""
        import json, sys
        from pathlib import Path
        from bootstrap.fleet import Fleet
        from infra.cluster import Cluster
        cluster = Cluster.from_json(json.loads(Path(sys.argv[1]).read_text()))
        with Fleet(cluster, root=Path(sys.argv[2])) as fleet:
            fleet.on_each(lambda s: s.run(["sh", "-c", 'echo $$ >"$0"; sleep 60', sys.argv[3] + s.node.name]))
    """)
    words = [sys.executable, "-c", program, str(tmp_path / "cluster.json"), str(root), f"{tmp_path}/started-"]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2])
    wait_until(lambda: [p.read_text()[-1:] for p in tmp_path.glob("started-*")] == ["\n"] * 2, "the commands' start")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode in (130, -signal.SIGINT)
    assert said.count(b"Traceback") == 1, said.decode()  # Python's own for KeyboardInterrupt, and none from threads
    pids = [int(path.read_text()) for path in tmp_path.glob("started-*")]
    wait_until(lambda: not any(map(alive, pids)), "the commands' end on the nodes")


# --- the real ssh client


def test_known_hosts_has_each_address_once_and_is_replaced_as_a_whole(cluster: Cluster, root: Path) -> None:
    path = write_known_hosts(cluster, root=root)
    ports = [node.private.port for node in cluster.nodes]
    assert [line.split()[0] for line in path.read_text().splitlines()] == [f"[127.0.0.1]:{port}" for port in ports]
    write_known_hosts(cluster.replace(nodes=cluster.nodes[:1]), root=root)
    assert len(path.read_text().splitlines()) == 1
    assert not [name for name in names(path.parent) if name.startswith("tmp")]


def test_ssh_runs_a_command_with_its_words_and_exit_code_through_the_head(
    start_sshd: Start, root: Path, tmp_path: Path
) -> None:
    cluster = cluster_of(node_for(start_sshd(), 0, tmp_path), node_for(start_sshd(), 1, tmp_path, hidden=True))
    words = ssh_command(cluster, cluster.nodes[1], ["sh", "-c", 'echo "$0"; exit 5', "a $HOME"], root=root)
    done = subprocess.run(words, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    assert (done.stdout, done.returncode) == (b"a $HOME\n", 5), done.stderr


@pytest.mark.parametrize("changed", [0, 1])
def test_ssh_refuses_another_host_key_on_either_hop(
    start_sshd: Start, root: Path, tmp_path: Path, other_key: str, changed: int
) -> None:
    nodes = [node_for(start_sshd(), 0, tmp_path), node_for(start_sshd(), 1, tmp_path, hidden=True)]
    nodes[changed] = dataclasses.replace(nodes[changed], host_key=other_key)
    words = ssh_command(cluster_of(*nodes), nodes[1], ["touch", str(tmp_path / "got-in")], root=root)
    done = subprocess.run(words, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 255
    assert not (tmp_path / "got-in").exists()
