"""A container becomes a node: with the real shell, the real OpenSSH, and a guard that is let fire."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from infra import ssh_keys
from infra.container_start import COMMAND, EndCall, variables
from infra.first_boot import FirstBoot
from tests.stand_ins import containers
from tests.stand_ins.containers import Container, Containers

pytestmark = pytest.mark.skipif(not containers.are_possible(), reason="needs root and network namespaces")


@pytest.fixture
def network() -> Iterator[Containers]:
    with Containers() as made:
        yield made


def boots(folder: Path, *, nodes: int = 1, lifetime_s: int = 3600) -> list[FirstBoot]:
    user = ssh_keys.make_pair(folder / "user", comment='it\'s "odd" $HOME')
    made = []
    for rank in range(nodes):
        public = ssh_keys.make_pair(folder / f"host-{rank}", comment="")
        made.append(
            FirstBoot(
                name=f"node-{rank}",
                host_key=(folder / f"host-{rank}").read_text(),
                host_public_key=public,
                authorized_key=user,
                expires_at=datetime.now(UTC) + timedelta(seconds=lifetime_s),
                lifetime_s=lifetime_s,
            )
        )
    return made


def ssh(folder: Path, container: Container, boot: FirstBoot, command: str) -> str:
    """Output of a command over OpenSSH's own client, which takes this host key and no other."""
    (folder / "known_hosts").write_text(f"{container.address} {boot.host_public_key}\n")
    options = ["UserKnownHostsFile=" + str(folder / "known_hosts"), "GlobalKnownHostsFile=none", "BatchMode=yes"]
    options += ["StrictHostKeyChecking=yes", "IdentitiesOnly=yes", "IdentityFile=" + str(folder / "user")]
    argv = ["ssh", "-F", "none", *(word for option in options for word in ("-o", option)), f"root@{container.address}"]
    done = subprocess.run(
        [*argv, command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_answers_with_our_host_key_to_our_key_and_has_the_images_paths_but_no_secret(
    network: Containers, tmp_path: Path
) -> None:
    (boot,) = boots(tmp_path)
    end = EndCall(method="DELETE", url="https://api.invalid/pods/${POD_ID}", key_variable="POD_KEY")
    environment = variables([boot], end=end)
    told = {"POD_ID": "pod-1", "POD_KEY": "secret", "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64", "CUDA_HOME": "a b"}
    container = network.start("pod-1", COMMAND, {**environment, **told})
    container.await_ssh()
    seen = ssh(tmp_path, container, boot, "env; cat /proc/1/environ | tr '\\0' '\\n'; cat /etc/trainstack/deadline")
    assert "LD_LIBRARY_PATH=/usr/local/nvidia/lib64\n" in seen
    assert seen.endswith(f"\n{int(boot.expires_at.timestamp())}\n")
    assert "secret" not in seen
    assert "CUDA_HOME" not in seen  # sshd's configuration can't tell it from two words
    assert "secret" not in container.said
    assert ssh(tmp_path, container, boot, "pgrep -f /etc/trainstack/guard") != ""


def test_containers_with_one_environment_take_their_own_key_by_rank(network: Containers, tmp_path: Path) -> None:
    two = boots(tmp_path, nodes=2)
    environment = variables(two, end=None, rank_variable="NODE_RANK")
    made = [network.start(f"pod-{rank}", COMMAND, {**environment, "NODE_RANK": str(rank)}) for rank in (0, 1)]
    for container, boot in zip(made, two, strict=True):
        container.await_ssh()
        assert ssh(tmp_path, container, boot, "hostname") == "pod\n"


def is_running(command: str) -> bool:
    """Anywhere on this machine, whose process table shows the containers' too."""
    return subprocess.run(["pgrep", "-f", f"^{command}$"], check=False, capture_output=True).returncode == 0


class Api:
    """Keeps the calls that come."""

    def __init__(self, address: str) -> None:
        self.calls: list[dict[str, str]] = []
        self.called = threading.Event()
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_DELETE(self) -> None:
                api.calls.append({"path": self.path, "key": self.headers["Authorization"]})
                self.send_response(204)
                self.end_headers()
                api.called.set()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer((address, 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://{self.server.server_address[0]!s}:{self.server.server_port}"


@pytest.mark.parametrize("curl", [True, False])
def test_at_the_deadline_it_ends_its_work_and_its_own_billing(network: Containers, tmp_path: Path, curl: bool) -> None:
    (boot,) = boots(tmp_path)
    api = Api(network.host)
    end = EndCall(method="DELETE", url=f"{api.url}/pods/${{POD_ID}}", key_variable="POD_KEY")
    environment = {**variables([boot], end=end), "POD_ID": "pod-7", "POD_KEY": "the pod's key"}
    environment["TRAINSTACK_LOOK_EVERY_S"] = "0.1"
    hide = "" if curl else "mount --bind /dev/null /usr/bin/curl; "
    container = network.start("pod-7", hide + COMMAND, environment)
    container.await_ssh()
    work = f"sleep 1000.{os.getpid()}"  # this test's own among all processes of the machine
    ssh(tmp_path, container, boot, f"{work} > /dev/null 2>&1 &")
    assert is_running(work)
    ssh(tmp_path, container, boot, "echo 1000 > /etc/trainstack/new; mv /etc/trainstack/new /etc/trainstack/deadline")
    assert api.called.wait(timeout=60), container.said
    assert api.calls[0] == {"path": "/pods/pod-7", "key": "Bearer the pod's key"}
    assert "the pod's key" not in container.said
    assert not is_running(work)
    api.server.shutdown()
    api.server.server_close()


def test_one_that_starts_after_its_deadline_calls_at_once_and_lets_nobody_in(
    network: Containers, tmp_path: Path
) -> None:
    (boot,) = boots(tmp_path, lifetime_s=-1)
    api = Api(network.host)
    end = EndCall(method="DELETE", url=f"{api.url}/pods/${{POD_ID}}", key_variable="POD_KEY")
    container = network.start("pod-1", COMMAND, {**variables([boot], end=end), "POD_ID": "pod-1", "POD_KEY": "k"})
    assert api.called.wait(timeout=60), container.said
    assert "is ready" not in container.said
    api.server.shutdown()
    api.server.server_close()
