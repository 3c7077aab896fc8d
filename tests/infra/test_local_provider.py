"""The local provider in both modes, on real sshds and with the real ssh client; no Pulumi engine here."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from infra import leftovers, ssh_keys
from infra.errors import LeftoversError
from infra.providers.local import PROVIDER, network, nodes, sshd, system
from tests.infra.local_stacks import MODES, LocalStack

ROOT = Path(__file__).resolve().parents[2]
Make = Callable[..., LocalStack]


def eventually(condition: Callable[[], bool], *, deadline_s: float = 30) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.02)


@pytest.mark.parametrize("mode", MODES)
def test_a_node_gives_a_session_its_own_home_and_tools_and_is_gone_without_trace(mode: str, local_stack: Make) -> None:
    stack = local_stack(mode)
    node = stack.create(0)

    answer = stack.ssh(node, 'printf "%s\\n" "$HOME" "$UV_OFFLINE" "$TRAINSTACK_NODE" && python3 -V && uv --version')

    assert answer.returncode == 0, answer.stderr
    home, offline, marker, python, uv = answer.stdout.splitlines()
    assert Path(home) == stack.layout.node("node-0").home
    assert offline == "1"
    assert marker.startswith("trainstack/trainstack/Test.stack/")
    assert python.startswith("Python 3.")
    assert uv.startswith("uv ")
    assert Path(node.work_dir).is_dir()

    stack.remove()
    assert PROVIDER.leftovers(stack.layout.deployment) == []


@pytest.mark.parametrize("mode", MODES)
def test_a_client_with_another_host_key_or_another_user_key_is_kept_out(mode: str, local_stack: Make) -> None:
    stack = local_stack(mode)
    node = stack.create(0)
    other = ssh_keys.make_pair(stack.layout.deployment.root / "other_key", comment="other")

    wrong_host = stack.ssh(dataclasses.replace(node, host_key=other), "true")
    (stack.layout.deployment.root / "other_key").replace(stack.layout.deployment.key_folder / "id_ed25519")
    wrong_user = stack.ssh(node, "true")

    assert wrong_host.returncode == 255
    assert "verification failed" in wrong_host.stderr
    assert wrong_user.returncode == 255
    assert "Permission denied (publickey)" in wrong_user.stderr


@pytest.mark.parametrize("mode", MODES)
def test_creating_again_makes_the_node_anew_and_ends_the_old_one(mode: str, local_stack: Make) -> None:
    stack = local_stack(mode)
    first = stack.create(0)
    old_guard = stack.guard_pid(0)
    (Path(first.work_dir) / "old").touch()

    second = stack.create(0)

    assert second.host_key != first.host_key
    assert stack.guard_pid(0) != old_guard
    assert not (Path(second.work_dir) / "old").exists()
    assert stack.ssh(second, "true").returncode == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_killed_node_is_seen_as_gone_and_its_neighbour_as_alive(mode: str, local_stack: Make) -> None:
    stack = local_stack(mode)
    for rank in range(2):
        stack.create(rank)

    os.kill(stack.guard_pid(1), signal.SIGKILL)

    eventually(lambda: not nodes.is_alive(stack.layout, "node-1"))
    assert nodes.is_alive(stack.layout, "node-0")


@pytest.mark.parametrize("mode", MODES)
def test_the_guard_ends_the_node_and_all_that_runs_on_it_when_its_time_is_over(mode: str, local_stack: Make) -> None:
    stack = local_stack(mode)
    node = stack.create(0)
    assert stack.ssh(node, "setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo started").stdout == "started\n"

    nodes.set_expiry(stack.layout.node("node-0"), datetime.now(UTC) - timedelta(seconds=1))

    eventually(lambda: system.processes(stack.layout) == [])


@pytest.mark.parametrize("mode", MODES)
def test_destroying_a_node_ends_detached_processes_and_leaves_the_neighbour_alone(mode: str, local_stack: Make) -> None:
    stack = local_stack(mode)
    first, second = stack.create(0), stack.create(1)
    stack.ssh(first, "setsid sleep 1000 >/dev/null 2>&1 </dev/null &")

    nodes.destroy(stack.layout, "node-0")
    nodes.destroy(stack.layout, "node-0")

    assert {each.node for each in system.processes(stack.layout)} <= {"node-1", ""}
    assert list(stack.layout.node("node-0").folder.iterdir()) == []
    assert stack.ssh(second, "true").returncode == 0


@pytest.mark.parametrize("mode", MODES)
def test_leftovers_finds_a_creation_that_was_killed_in_the_middle_and_removes_it(mode: str, local_stack: Make) -> None:
    stack = local_stack(mode)
    child = os.fork()
    if child == 0:  # killed below, by our own hand, as soon as something is there
        stack.create(0)
        signal.pause()
    eventually(lambda: stack.layout.node("node-0").etc.exists())
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

    root, name = stack.layout.deployment.root, stack.layout.deployment.stack
    with pytest.raises(LeftoversError, match=r"fab leftovers --stack Test\.stack --remove"):
        leftovers.check(root, name)
    leftovers.sweep(root, name)

    assert leftovers.find(root, name) == []


def test_leftovers_asked_as_a_program_exits_6_with_a_table_until_they_are_removed(local_stack: Make) -> None:
    stack = local_stack("loopback")
    node = stack.create(0)
    program = (
        "import sys; from pathlib import Path; from infra import leftovers; root = sys.argv.pop(1); "
        "leftovers.project_root = lambda: Path(root); sys.exit(leftovers.main())"
    )
    command = [sys.executable, "-c", program, str(stack.layout.deployment.root), "--stack", "Test.stack"]

    def ask(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *more], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    found = ask()
    assert found.returncode == 6
    assert f"127.0.0.1:{node.port}" in found.stdout
    assert "--remove" in found.stderr
    assert ask("--remove").returncode == 0
    assert ask().stdout == "stack Test.stack: nothing is left\n"


@pytest.mark.parametrize("mode", MODES[:1])
def test_namespaced_nodes_reach_each_other_but_see_nothing_of_each_other_or_of_the_user(
    mode: str, local_stack: Make, hard_link_source: Path
) -> None:
    stack = local_stack(mode)
    first, second = stack.create(0), stack.create(1)
    (Path(second.work_dir) / "checkpoint").touch()
    keys = stack.layout.deployment.key_folder.parent

    seen = stack.ssh(first, f'hostname; ls -A "{second.work_dir}" "{keys}" 2>/dev/null; ps ax -o args=')
    reach = stack.ssh(first, f"python3 -c \"import socket; print(socket.create_connection(('{second.address}', 22)))\"")
    link = stack.ssh(first, f'ln "{hard_link_source}" "$HOME/link" && echo linked')

    assert seen.stdout.startswith("node-0\n")
    assert "checkpoint" not in seen.stdout
    assert "Test.stack\n" not in seen.stdout
    assert "-m pytest" not in seen.stdout
    assert reach.returncode == 0, reach.stderr
    if hard_link_source.stat().st_dev == stack.layout.folder.stat().st_dev:
        assert link.stdout == "linked\n", link.stderr  # environments cost no disk


@pytest.mark.parametrize("mode", MODES[:1])
def test_a_node_that_is_added_later_is_hidden_from_those_that_run(mode: str, local_stack: Make) -> None:
    stack = local_stack(mode)
    first = stack.create(0)

    network.prepare_folders(stack.layout, nodes=3, shared=False)
    stack.count = 3
    third = stack.create(2)
    (Path(third.work_dir) / "checkpoint").touch()

    assert "checkpoint" not in stack.ssh(first, f'ls -A "{third.work_dir}"').stdout
    assert stack.ssh(third, f'ls -A "{third.work_dir}"').stdout == "checkpoint\n"


@pytest.mark.parametrize("mode", MODES)
def test_shared_storage_is_one_folder_on_every_node(mode: str, local_stack: Make) -> None:
    stack = local_stack(mode, shared=True)
    first, second = stack.create(0), stack.create(1)

    assert stack.ssh(first, f'echo hello > "{stack.layout.shared}/file"').returncode == 0

    assert stack.ssh(second, f'cat "{stack.layout.shared}/file"').stdout == "hello\n"


def test_a_subnet_is_chosen_that_no_route_has() -> None:
    from ipaddress import IPv4Network

    first = network.free_subnet([], start=7)
    assert network.free_subnet([IPv4Network(f"{first.network_address}/16", strict=False)], start=7) != first
    assert not network.free_subnet([first], start=7).overlaps(first)


def test_an_sshd_that_cannot_start_is_reported_with_its_own_words(
    local_stack: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = local_stack("loopback")
    monkeypatch.setattr(sshd, "configuration", lambda *_args, **_kwargs: "NoSuchOption yes\n")

    with pytest.raises(nodes.ProviderError, match=r"node-0.*NoSuchOption"):
        stack.create(0)

    assert system.processes(stack.layout) == []
