"""The life of a run on two nodes, as seen from the user's machine: start, follow, stop, status, report.

The nodes are folders and torchrun is the stand-in; the supervisors, their channel and all processes are real.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from launcher_nodes import wait_for
from stand_in_fleet import LocalFleet, LocalShell

from bootstrap.errors import ConnectionLost, SeveralNodes
from launcher import nodes, start
from launcher.errors import BusyError, Detached, PreparationError, RunFailed, RunStopped, RunUnreachable
from launcher.follow import GIVE_UP_S, fetch, follow, log_path, read_local
from launcher.node import processes
from launcher.record import RunRecord, Runs
from launcher.report import close, raise_for
from launcher.status import RunStatus, ask_status, table
from launcher.stop import stop

SLEEP = "import time; print('ready'); time.sleep(600)"


@dataclass
class Controller:
    """The user's machine."""

    fleet: LocalFleet
    root: Path
    prepared: Any
    code: Any
    script: Callable[[str], Path]
    shown: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def submit(self, text: str, *arguments: str) -> RunRecord:
        plan = start.plan_script(str(self.script(text)), arguments=arguments, name=None)
        return start.submit(
            self.fleet,
            plan,
            root=self.root,
            prepared=self.prepared,
            code=self.code,
            report=self.said.append,  # type: ignore[arg-type]
        )

    def follow(self, record: RunRecord) -> None:
        follow(self.fleet, record, root=self.root, show=lambda node, line: self.shown.append(f"{node} {line}"))  # type: ignore[arg-type]

    def status(self, record: RunRecord) -> RunStatus:
        return ask_status(self.fleet, record, root=self.root)  # type: ignore[arg-type]

    def stop(self, record: RunRecord, *, grace_s: float = 5.0) -> Any:
        return stop(self.fleet, record, root=self.root, grace_s=grace_s)  # type: ignore[arg-type]

    def wait_for_words(self, record: RunRecord, words: str = "ready", *, times: int = 4) -> None:
        def seen() -> bool:
            logs = [Path(record.folder_on(n.work_dir)) / "output.log" for n in self.fleet.cluster.nodes]
            return sum(log.read_text(errors="replace").count(words) for log in logs if log.exists()) >= times

        wait_for(seen, f"{words!r} {times} times")

    def local_log(self, record: RunRecord, node: str) -> bytes:
        return log_path(self.root, record.id, node).read_bytes()

    def node_log(self, record: RunRecord, node: str) -> bytes:
        work_dir = self.fleet.cluster.node(node).work_dir
        return (Path(record.folder_on(work_dir)) / "output.log").read_bytes()

    def is_clean(self, record: RunRecord) -> bool:
        return not any(processes.marked(record.id, node.name) for node in self.fleet.cluster.nodes)


@pytest.fixture
def user(
    fleet: LocalFleet,
    root: Path,
    prepared: Any,
    code: Any,
    script: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> Controller:
    monkeypatch.setattr(start, "GRACE_S", 5.0)
    monkeypatch.setattr(start, "FAIL_GRACE_S", 1.0)
    return Controller(fleet, root, prepared, code, script)


def test_a_run_on_both_nodes_from_start_to_finish(user: Controller) -> None:
    record = user.submit(
        "import os, sys; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], sys.argv[1:])", "-v", "a b"
    )
    assert record.id in user.said[0]
    assert "fab attach" in user.said[1]
    assert "fab stop" in user.said[1]
    user.follow(record)
    expected = [f"node-{r // 2} [rank {r}] rank {r} of 4 ['-v', 'a b']" for r in range(4)]
    assert sorted(user.shown) == expected
    status = user.status(record)
    assert status.verdict.state == "finished"
    raise_for(status)
    assert user.is_clean(record)
    assert Runs(user.root).load(record.id[-4:]).state == "finished"
    assert record.id in table([status])


def test_a_rank_that_fails_on_one_node_ends_all_and_is_named(user: Controller) -> None:
    record = user.submit(
        "import os, sys, time\n"
        "if os.environ['RANK'] == '3': print('bad data', file=sys.stderr); sys.exit(3)\n"
        "time.sleep(600)"
    )
    user.follow(record)
    status = user.status(record)
    assert (status.verdict.state, status.verdict.why) == ("failed", "rank 3 on node-1 ended with exit code 3")
    text = close(user.fleet, status, root=user.root)  # type: ignore[arg-type]
    assert "bad data" in text
    assert "consequence: rank" in text
    assert json.loads((Runs(user.root).path(record.id) / "report.json").read_text())["first_failure"]["exit_code"] == 3
    with pytest.raises(RunFailed, match="rank 3 on node-1"):
        raise_for(status)
    assert user.is_clean(record)


@pytest.mark.parametrize("victim", ["agent_pid", "pid"])
@pytest.mark.parametrize("where", ["node-0", "node-1"])
def test_a_killed_torchrun_or_supervisor_ends_the_other_node_too(user: Controller, victim: str, where: str) -> None:
    record = user.submit(SLEEP)
    user.wait_for_words(record)
    facts = {node.node: node.facts for node in user.status(record).nodes}
    os.kill(facts[where][victim], signal.SIGKILL)
    user.follow(record)
    status = user.status(record)
    other = "node-1" if where == "node-0" else "node-0"
    assert {n.node: n.state for n in status.nodes}[other] == "ended"
    assert status.verdict.state == ("failed" if victim == "agent_pid" else "lost")
    assert where in status.verdict.why
    user.stop(record)
    assert user.is_clean(record)


def test_stop_ends_the_run_everywhere_and_repeating_it_is_success(user: Controller) -> None:
    record = user.submit(
        "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(75)); print('ready'); time.sleep(600)"
    )
    user.wait_for_words(record)
    stopped = user.stop(record)
    assert (stopped.did, stopped.status.verdict.state) == (True, "stopped")
    assert user.is_clean(record)
    with pytest.raises(RunStopped) as error:
        raise_for(stopped.status)
    assert error.value.exit_code == 75
    assert user.stop(record).did is False


def test_stop_on_one_reachable_node_stops_the_other_too(user: Controller) -> None:
    record = user.submit(
        "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(75)); print('ready'); time.sleep(600)"
    )
    user.wait_for_words(record)
    user.fleet.cut("node-1")
    with pytest.raises(RunUnreachable, match="not stopped on 1 of 2 nodes"):
        user.stop(record)
    assert user.status(record).verdict.state == "unreachable"
    user.fleet.mend("node-1")
    wait_for(lambda: user.status(record).verdict.state == "stopped", "the other node to stop")


def test_of_two_starts_one_runs_and_the_other_says_how_to_reach_it(user: Controller) -> None:
    record = user.submit(SLEEP)
    with pytest.raises(BusyError, match=record.id) as error:
        user.submit(SLEEP)
    assert error.value.exit_code == 3
    assert user.status(record).verdict.state in ("preparing", "running")
    assert Runs(user.root).latest("test").id == record.id  # so `fab stop` and `fab attach` mean the run that is on
    assert not any("follow:" in line and record.id not in line for line in user.said)
    user.stop(record, grace_s=0)


def test_two_machines_that_start_at_once_start_one_run(user: Controller, tmp_path: Path) -> None:
    users = [dataclasses.replace(user, root=tmp_path / f"laptop-{i}", shown=[], said=[]) for i in range(2)]
    results: list[Any] = []

    def submit(one: Controller) -> None:
        try:
            results.append(one.submit(SLEEP))
        except BusyError as error:
            results.append(error)

    threads = [threading.Thread(target=submit, args=(one,)) for one in users]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    started = [result for result in results if isinstance(result, RunRecord)]
    assert (len(results), len(started)) == (2, 1)
    other = nodes.record_on_head(user.fleet, started[0].id)  # type: ignore[arg-type]
    assert other is not None
    assert other.command == started[0].command
    user.stop(other, grace_s=0)


def test_a_node_that_cannot_take_the_run_frees_the_others(user: Controller) -> None:
    node = user.fleet.cluster.node("node-1")
    (Path(node.work_dir) / "runs").write_text("a file where a folder must be")
    with pytest.raises(PreparationError, match="node-1"):
        user.submit(SLEEP)
    (Path(node.work_dir) / "runs").unlink()
    record = user.submit("print('now')")
    user.follow(record)
    assert user.status(record).verdict.state == "finished"


def test_a_lost_connection_costs_no_line(user: Controller) -> None:
    record = user.submit("import os, time\nfor i in range(200): print('line', i, 'é' * 50); time.sleep(0.02)")
    follower = threading.Thread(target=user.follow, args=(record,))
    follower.start()
    try:
        for node in ("node-1", "node-0", "node-1"):
            seen = len(user.shown)
            wait_for(lambda seen=seen: len(user.shown) > seen + 20, "more lines")
            user.fleet.cut(node)
            user.fleet.mend(node)
    finally:
        follower.join()
    for rank in range(4):
        lines = [line for line in user.shown if f"[rank {rank}]" in line]
        assert lines == [f"node-{rank // 2} [rank {rank}] line {i} {'é' * 50}" for i in range(200)]
    for node in ("node-0", "node-1"):
        assert user.local_log(record, node) == user.node_log(record, node)


def test_nodes_that_stay_out_of_reach_end_the_following_and_not_the_run(
    user: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = user.submit(SLEEP)
    user.wait_for_words(record)
    for name in ("node-0", "node-1"):
        user.fleet.cut(name)
    with monkeypatch.context() as patch:
        patch.setattr("launcher.follow.GIVE_UP_S", 0.0)
        with pytest.raises(RunUnreachable, match=r"node-\d: no answer: .* `fab attach`") as error:
            user.follow(record)
    assert error.value.exit_code == 5
    for name in ("node-0", "node-1"):
        user.fleet.mend(name)
    assert user.status(record).verdict.state == "running"
    user.stop(record, grace_s=0)


def test_a_connection_lost_after_a_long_silence_is_made_again(
    user: Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most ranks print nothing for hours: then silence says nothing about how long a node was out of reach."""
    now = [1000.0]
    monkeypatch.setattr("launcher.follow.time", SimpleNamespace(monotonic=lambda: now[0]))
    go = tmp_path / "go"
    record = user.submit(f"import os, time\nprint('ready')\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)")
    ended: list[object] = []

    def follow_it() -> None:
        try:
            user.follow(record)
        except RunUnreachable as error:
            ended.append(error)

    follower = threading.Thread(target=follow_it)
    follower.start()
    wait_for(lambda: len(user.shown) == 4, "a word of each rank")
    now[0] += 10 * GIVE_UP_S
    user.fleet.cut("node-1")
    user.fleet.mend("node-1")
    go.touch()
    follower.join()
    assert ended == []


def test_attach_goes_on_in_the_middle_of_a_line_where_a_killed_follower_was(user: Controller) -> None:
    record = user.submit("print('abc'); print('def')")
    wait_for(lambda: user.status(record).verdict.state == "finished", "the end")
    whole = user.node_log(record, "node-0")
    path = log_path(user.root, record.id, "node-0")
    path.parent.mkdir(parents=True)
    path.write_bytes(whole[: whole.index(b"def") + 1])
    user.follow(record)
    assert user.local_log(record, "node-0") == whole
    assert "node-0 [rank 0] def" in user.shown
    assert "node-0 [rank 0] abc" not in user.shown


def test_logs_are_fetched_once_and_filtered_by_rank(user: Controller) -> None:
    record = user.submit("import os, sys; sys.stdout.buffer.write(b'\\xff from %s\\n' % os.environ['RANK'].encode())")
    wait_for(lambda: user.status(record).verdict.state == "finished", "the end")
    for _ in range(2):
        fetch(user.fleet, record, root=user.root)  # type: ignore[arg-type]
    assert list(read_local(user.root, record, node=None, rank=2)) == [("node-1", "[rank 2] \ufffd from 2")]
    assert len(list(read_local(user.root, record, node="node-0", rank=None))) == 2


def test_a_second_follower_on_one_machine_is_refused(user: Controller) -> None:
    record = user.submit(SLEEP)
    follower = threading.Thread(target=user.follow, args=(record,))
    follower.start()
    try:
        wait_for(lambda: user.shown, "the first line")
        with pytest.raises(BusyError, match="another terminal"):
            user.follow(record)
    finally:
        user.stop(record, grace_s=0)
        follower.join()


def test_interrupting_a_follower_leaves_the_run_and_says_how_to_go_on(user: Controller) -> None:
    record = user.submit(SLEEP)

    def interrupt(node: str, line: str) -> None:  # noqa: ARG001
        raise KeyboardInterrupt

    with pytest.raises(Detached, match=f"fab attach --run {record.id}") as error:
        follow(user.fleet, record, root=user.root, show=interrupt)  # type: ignore[arg-type]
    assert error.value.exit_code == 130
    assert user.status(record).verdict.state == "running"
    user.stop(record, grace_s=0)


def test_a_connection_lost_before_the_word_to_go_gives_the_nodes_back(
    user: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(shell: LocalShell, *_: Any) -> float:
        raise ConnectionLost(f"{shell.node.name}: the connection ended")

    with monkeypatch.context() as patch:
        patch.setattr(start, "say_go", lose)
        with pytest.raises(SeveralNodes, match="starting torchrun"):
            user.submit(SLEEP)
    assert [record.state for record in Runs(user.root).newest_first("test")] == ["failed"]
    record = user.submit("print()")
    user.follow(record)
    assert user.status(record).verdict.state == "finished"


def test_a_run_that_could_not_be_started_stays_failed_and_has_no_output(
    user: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> dict[str, Any]:
        raise PreparationError("node-0: disk full")

    with monkeypatch.context() as patch:
        patch.setattr(start, "start_supervisor", full)
        with pytest.raises(Exception, match="disk full"):
            user.submit(SLEEP)
    record = Runs(user.root).latest("test")
    user.follow(record)
    status = user.status(record)
    assert (user.shown, status.verdict.state, "disk full" in status.verdict.why) == ([], "failed", True)
    assert Runs(user.root).load(record.id).state == "failed"


def test_a_recorded_end_outlives_its_machines(user: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    record = user.submit("print()")
    user.follow(record)
    ended = user.status(record).record
    new = [dataclasses.replace(node, host_key=f"ssh-ed25519 new {node.name}") for node in user.fleet.cluster.nodes]
    monkeypatch.setattr(user.fleet, "cluster", dataclasses.replace(user.fleet.cluster, nodes=tuple(new)))
    assert user.status(ended).verdict.state == "finished"
    assert Runs(user.root).load(record.id).state == "finished"


def test_the_figures_of_a_run_are_its_own(user: Controller) -> None:
    """Runs of one experiment share a metrics file: what a later or another run wrote there doesn't count."""
    record = user.submit("print()")
    user.follow(record)
    status = user.status(record)
    head_ended = status.nodes[0].facts["ended_at"]
    metrics = Path(record.output_dir) / "metrics.jsonl"
    metrics.parent.mkdir(parents=True, exist_ok=True)
    events = [
        {"event": "step", "step": step, "time": head_ended + after_s, "loss": 1.0}
        for step, after_s in ((7, 0), (8, 60))
    ]
    metrics.write_text("".join(json.dumps(event) + "\n" for event in events))
    assert "step 7 " in close(user.fleet, status, root=user.root)  # type: ignore[arg-type]
    assert "step" not in close(user.fleet, dataclasses.replace(status, nodes=()), root=user.root)  # type: ignore[arg-type]
