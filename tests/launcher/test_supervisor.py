"""The supervisor alone on one node, with real processes: what it runs, what it says, and that it leaves nothing behind.

torchrun is the stand-in here (see stand_in_torch); test_torchrun.py runs the same things under the real one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launcher_nodes import STAND_IN_TORCH, wait_for

from launcher.node import commands, processes
from launcher.node.layout import RunFolder, read_json, write_json
from launcher.nodes import node_files

RUN = "20260101-000000-abcd"


class OneNode:
    """The node's side of one run, used as the user's machine does: by its commands."""

    def __init__(self, work_dir: Path, *, run: str = RUN) -> None:
        self.folder = RunFolder(work_dir / "runs" / run)
        for name, text in node_files().items():
            path = self.folder.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.work_dir = work_dir
        self.run = run

    def write_spec(self, script: str, **changes: Any) -> None:
        path = self.work_dir / f"script {self.run}.py"
        path.write_text(script)
        spec = {
            "run": self.run,
            "node": "node-0",
            "node_rank": 0,
            "nodes": 1,
            "processes": 2,
            "cpu_threads": 5,
            "address": "127.0.0.1",
            "interface": None,
            "peers": [],
            "token": "token",
            "grace_s": 2.0,
            "fail_grace_s": 0.5,
            "python": sys.executable,
            "python_path": [str(STAND_IN_TORCH)],
            "cwd": str(self.work_dir),
            "command": [sys.executable, str(path)],
            "must_be_files": [str(path)],
        }
        write_json(self.folder.spec, spec | changes)

    def command(self, name: str, *rest: str, stdin: str = "") -> Any:
        words = [sys.executable, str(self.folder.path / "node"), name, str(self.folder.path), *rest]
        done = subprocess.run(words, input=stdin, capture_output=True, text=True, cwd="/", check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def start(self) -> dict[str, Any]:
        return dict(self.command("start"))

    def go(self, started: dict[str, Any]) -> None:
        keys = ("rendezvous_port", "channel_port")
        self.command("go", stdin=json.dumps({"address": "127.0.0.1", **{key: started[key] for key in keys}}))

    def status(self) -> dict[str, Any]:
        return dict(commands.status(self.folder))

    def ended(self) -> dict[str, Any]:
        return dict(
            wait_for(lambda: s if (s := self.status())["state"] in ("ended", "lost") else None, "the run's end")
        )

    def log(self) -> str:
        return self.folder.log.read_bytes().decode("utf-8", "replace") if self.folder.log.exists() else ""

    def run_to_the_end(self, script: str, **changes: Any) -> dict[str, Any]:
        self.write_spec(script, **changes)
        self.go(self.start())
        return self.ended()

    def run_until_said(self, script: str, words: str = "ready", **changes: Any) -> None:
        self.write_spec(script, **changes)
        self.go(self.start())
        wait_for(lambda: words in self.log(), f"{words!r} in the log")

    def is_clean(self) -> bool:
        return not processes.marked(self.run, "node-0")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[OneNode]:
    made = OneNode(tmp_path / "work dir")
    yield made
    commands.stop(made.folder, 0)
    assert made.is_clean()


def test_a_run_that_ends_with_0(node: OneNode) -> None:
    state = node.run_to_the_end("import os; print('hello from', os.environ['RANK'])")
    assert (state["exit_code"], state["reason"], state["first_failure"]) == (0, "exit", None)
    assert [rank["exit_code"] for rank in state["ranks"]] == [0, 0]
    assert sorted(node.log().splitlines()) == ["[rank 0] hello from 0", "[rank 1] hello from 1"]


def test_the_environment_of_a_rank(node: OneNode) -> None:
    names = ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "PYTHONUNBUFFERED")
    node.run_to_the_end(f"import os; print([os.environ.get(n) for n in {names}], os.getcwd())", processes=1)
    loopback = "lo" if sys.platform == "linux" else "lo0"
    assert node.log() == f"[rank 0] ['5', '{loopback}', '{loopback}', '1'] {node.work_dir}\n"


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root")
@pytest.mark.parametrize("ours", ["eth0", "ens5"])
def test_the_interface_is_the_one_with_the_nodes_address_and_no_bridge_that_all_nodes_have(ours: str) -> None:
    lines = "".join(
        f"ip link add {name} type bridge && ip address add {address} dev {name} && ip link set {name} up && "
        for name, address in (("docker0", "172.17.0.1/16"), (ours, "10.77.0.1/24"), ("zz", "fd00:77::1/64"))
    )
    ask = (
        "from launcher.node.network import interface_of as of; print(of('10.77.0.1'), of('fd00:77::1'), of('10.0.0.9'))"
    )
    words = ["unshare", "--net", "sh", "-c", f'{lines} exec "$0" -c "$1"', sys.executable, ask]
    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert (done.stdout, done.stderr) == (f"{ours} zz None\n", "")


def test_the_first_failing_rank_is_told_with_its_exit_code_and_last_lines(node: OneNode) -> None:
    state = node.run_to_the_end(
        "import os, sys, time\n"
        "if os.environ['RANK'] == '1': print('no such data', file=sys.stderr); sys.exit(3)\n"
        "time.sleep(600)"
    )
    failure = state["first_failure"]
    assert (failure["rank"], failure["exit_code"], failure["lines"]) == (1, 3, ["no such data"])
    assert "rank 1 ended with exit code 3" in node.log()


def test_a_rank_killed_by_a_signal(node: OneNode) -> None:
    state = node.run_to_the_end(
        "import os, signal; os.kill(os.getpid(), 9) if os.environ['RANK'] == '0' else signal.pause()"
    )
    assert (state["first_failure"]["rank"], state["first_failure"]["exit_code"]) == (0, -9)


def test_ranks_that_stop_with_a_checkpoint_are_no_failure(node: OneNode) -> None:
    state = node.run_to_the_end("raise SystemExit(75)")
    assert state["first_failure"] is None
    assert {rank["exit_code"] for rank in state["ranks"]} <= {75, -15}  # torchrun ends the others after the first


def test_output_that_is_not_text_has_no_line_end_or_is_huge_is_kept(node: OneNode) -> None:
    node.run_to_the_end(
        "import sys\n"
        "sys.stdout.buffer.write(b'\\xff\\xfe\\n' + b'x' * 2_000_000 + b'\\n' + b'no end')\nsys.stdout.flush()",
        processes=1,
    )
    assert node.folder.log.read_bytes() == b"[rank 0] \xff\xfe\n[rank 0] " + b"x" * 2_000_000 + b"\n[rank 0] no end\n"


def test_stop_lets_the_ranks_save_and_is_safe_to_repeat(node: OneNode) -> None:
    node.run_until_said(
        "import signal, sys, time\n"
        "def save(*_): print('saved'); sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, save); print('ready'); time.sleep(600)"
    )
    assert node.command("stop", "10")["did"] is True
    state = node.status()
    assert (state["state"], state["reason"], state["first_failure"]) == ("ended", "stop", None)
    assert [rank["exit_code"] for rank in state["ranks"]] == [75, 75]
    assert node.log().count("saved") == 2
    assert node.command("stop", "10")["did"] is False


def test_stop_ends_ranks_that_ignore_it_and_what_they_hid(node: OneNode) -> None:
    node.run_until_said(
        "import signal, subprocess, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen('(setsid sleep 600 &) ; (env -i setsid sleep 601 &)', shell=True).wait()\n"
        "print('ready'); time.sleep(600)"
    )
    supervisor = node.status()["pid"]
    assert len(processes.descendants(supervisor)) >= 7  # torchrun, two ranks, four sleeps
    hidden = processes.descendants(supervisor)
    node.command("stop", "0.5")
    assert node.status()["reason"] == "stop"
    assert not [pid for pid in hidden if processes.start_time(pid)]


def test_torchrun_killed_leaves_no_rank(node: OneNode) -> None:
    node.run_until_said("import time; print('ready'); time.sleep(600)")
    os.kill(node.status()["agent_pid"], signal.SIGKILL)
    state = node.ended()
    assert (state["first_failure"]["rank"], state["first_failure"]["exit_code"]) == (None, -9)
    assert node.is_clean()


def test_a_killed_supervisor_is_lost_and_stop_clears_its_remains_and_loses_no_line(node: OneNode) -> None:
    node.run_until_said(
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True)\n"
        "while True: print('on', flush=True); time.sleep(0.02)"
    )
    os.kill(node.status()["pid"], signal.SIGKILL)
    wait_for(lambda: node.status()["state"] == "lost", "the run to be lost")
    assert node.status()["left"]
    assert node.command("stop", "0")["did"] is True
    assert node.is_clean()
    assert node.status()["state"] == "lost"
    said = [node.folder.source(f"rank-{rank}").read_text().splitlines() for rank in (0, 1)]
    assert sorted(node.log().splitlines()) == sorted(f"[rank {r}] {line}" for r in (0, 1) for line in said[r])


def test_a_reused_process_id_is_never_killed(node: OneNode) -> None:
    other = subprocess.Popen(["sleep", "600"])
    try:
        node.write_spec("print()")
        state = {"run": RUN, "node": "node-0", "state": "running", "pid": other.pid, "start_time": "1"}
        write_json(node.folder.state, state | {"boot_id": processes.boot_id()})
        assert node.status()["state"] == "lost"
        node.command("stop", "0")
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_restarted_machine_makes_the_run_lost(node: OneNode) -> None:
    node.run_until_said("import time; print('ready'); time.sleep(600)")
    state = read_json(node.folder.state)
    assert state is not None
    pretended = state | {"boot_id": "another"}
    node.command("stop", "0")
    write_json(node.folder.state, pretended)
    assert node.status()["state"] == "lost"


def test_a_node_takes_one_run_at_a_time_and_is_free_after_it(node: OneNode) -> None:
    second = OneNode(node.work_dir, run="20260101-000001-abcd")
    second.write_spec("print('second')")
    node.run_until_said("import time; print('ready'); time.sleep(600)")
    assert second.start()["busy"]["run"] == RUN
    node.command("stop", "0")
    second.go(second.start())
    assert second.ended()["exit_code"] == 0


def test_a_node_with_left_processes_is_busy(node: OneNode) -> None:
    second = OneNode(node.work_dir, run="20260101-000002-abcd")
    second.write_spec("print('second')")
    node.run_until_said("import signal, time; signal.signal(15, signal.SIG_IGN); print('ready'); time.sleep(600)")
    os.kill(node.status()["pid"], signal.SIGKILL)
    wait_for(lambda: node.status()["state"] == "lost", "the run to be lost")
    busy = second.start()["busy"]
    assert (busy["run"], busy["unsupervised"]) == (RUN, True)
    assert second.status()["state"] == "absent"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_disk_that_fills_up_during_a_run_is_told_and_the_end_is_written_down(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)], check=True)
    node = OneNode(disk)
    try:
        state = node.run_to_the_end(
            "import os, time\n"
            "while os.environ['RANK'] == '1': print('x' * 1000)\n"  # and its last words have no room either
            "time.sleep(600)"
        )
        assert (state["first_failure"]["rank"], state["first_failure"]["exit_code"]) == (1, 1)
        assert f"disk full at {node.folder.path} (0 MiB free)" in state["disk"]
        assert node.is_clean()
    finally:
        commands.stop(node.folder, 0)
        subprocess.run(["umount", str(disk)], check=True)


def test_a_run_stopped_before_the_word_to_go_never_starts(node: OneNode) -> None:
    node.write_spec("print('never')")
    node.start()
    assert node.status()["state"] == "waiting"
    node.command("stop", "0")
    state = node.status()
    assert (state["state"], state["reason"], node.log()) == ("ended", "cancelled", "")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"interface": "nope0"}, "node-0 has no network interface 'nope0'"),
        ({"interface": "^lo,docker0"}, "node-0 has no network interface '^lo,docker0'"),
        ({"must_be_files": ["/no/such/trainer.py"]}, "/no/such/trainer.py isn't there"),
        ({"address": "192.0.2.7"}, "private address 192.0.2.7 can't be listened on"),
    ],
)
def test_what_the_node_cannot_run_is_said_and_leaves_it_free(node: OneNode, changes: dict[str, Any], said: str) -> None:
    node.write_spec("print()", **changes)
    assert said in node.start()["error"]
    node.write_spec("print()")
    wait_for(lambda: "ok" in node.start(), "the claim to be free again")
