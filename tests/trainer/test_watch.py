"""Stopping, bad steps and hangs, with real ranks and faults built in (tests/trainer/faulty.py)."""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.conftest import DEADLINE_S, ROOT, Start, command, events, finish, free_port
from trainer.config import WatchSection
from trainer.data.prefetch import Feed
from trainer.errors import BadStep
from trainer.metrics.schema import EVENTS
from trainer.watch.bad_steps import BadSteps
from trainer.watch.beats import Beat, blame

RECIPE = ROOT / "trainer" / "recipes" / "smoke.yaml"
FOREVER = "training.steps=1e6"


@dataclass
class Case:
    fault: str
    output: Path
    overrides: list[str] = field(default_factory=list)
    notice_file: Path | None = None

    def to_json(self) -> dict[str, Any]:
        sets = [word for item in (f"output_dir={self.output}", *self.overrides) for word in ("--set", item)]
        notice = {"notice_file": str(self.notice_file)} if self.notice_file else {}
        return {"fault": self.fault, "port": free_port(), "arguments": [str(RECIPE), *sets], **notice}


def run_ranks(start: Callable[..., Any], cases: list[Case], *, world: int = 2) -> list[Any]:
    """Starts `world` ranks that run the cases one after the other; returns their processes, by rank."""
    text = json.dumps([case.to_json() for case in cases])
    argv = [sys.executable, "-m", "tests.trainer.faulty", text]
    common = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1"}
    return [start(argv, environment={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(world)]


@pytest.fixture(scope="module")
def session(start_module: Start, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All cases that end by themselves, in one start of two ranks: outputs, and the folder of each case."""
    root = tmp_path_factory.mktemp("watch")
    common = ["strategy=ddp", "metrics.sinks=[jsonl]"]
    cases = {
        "plain": Case("none", root / "plain", common),
        "bad loss": Case("bad loss", root / "bad loss", common),
        "bad gradients": Case("bad gradients", root / "bad gradients", ["metrics.sinks=[jsonl]"]),
        "stop on bad": Case("bad loss", root / "stop on bad", [*common, "watch.on_bad_step=stop"]),
        "always bad": Case("always bad", root / "always bad", [*common, "watch.max_bad_steps=2"]),
        "spike": Case("spike", root / "spike", [*common, "watch.spike_factor=20", "training.steps=22"]),
        "notice": Case("notice", root / "notice", [*common, FOREVER], root / "notice file"),
        "max duration": Case("none", root / "max duration", [*common, FOREVER, "watch.max_duration=1s"]),
        "evaluation": Case("stop in evaluation", root / "evaluation", [*common, "training.evaluate_every=2"]),
        "last evaluation": Case("stop in evaluation", root / "last evaluation", common),
        "again": Case("none", root / "last evaluation", common),
        "two signals": Case("two signals", root / "two signals", common),
    }
    outputs = [finish(process) for process in run_ranks(start_module, list(cases.values()))]
    codes = [[line.rpartition(" ")[2] for line in text.splitlines() if line.startswith("case ")] for text in outputs]
    assert codes[0] == codes[1], outputs
    return {
        "outputs": outputs,
        "codes": dict(zip(cases, map(int, codes[0]), strict=True)),
        "folders": {name: case.output for name, case in cases.items()},
    }


def last_checkpoint(output: Path) -> int:
    return max(int(path.parent.name.rpartition("-")[2]) for path in output.glob("checkpoints/step-*/manifest.json"))


@pytest.mark.parametrize("case", ["bad loss", "bad gradients"])
def test_a_step_whose_numbers_are_none_on_one_rank_is_skipped_on_all(session: dict[str, Any], case: str) -> None:
    output = session["folders"][case]
    assert session["codes"][case] == 0
    (bad,) = events(output, "bad_step")
    assert (bad["step"], bad["in_a_row"], bad["total"], bad["gradient_norm"]) == (3, 1, 1, None)
    assert (bad["loss"] is None) == (case == "bad loss")
    assert [line["step"] for line in events(output, "step")] == [1, 2, 4, 5, 6]
    assert events(output, "window")[-1]["bad_steps"] == 1
    assert json.loads((output / "finished.json").read_text())["samples_seen"] == 6 * 16  # the data moved on
    for text in session["outputs"]:
        assert text.count("weights after the bad step: unchanged") == 3  # with the case "always bad"
        assert "weights after the bad step: changed" not in text


def test_a_bad_step_ends_the_run_if_the_recipe_says_so(session: dict[str, Any]) -> None:
    assert session["codes"]["stop on bad"] == 4
    assert "step 3: the loss is nan" in session["outputs"][0]
    assert [line["step"] for line in events(session["folders"]["stop on bad"], "bad_step")] == [3]


def test_too_many_bad_steps_in_a_row_end_the_run(session: dict[str, Any]) -> None:
    assert session["codes"]["always bad"] == 4
    assert "bad step 2 in a row" in session["outputs"][0]


def test_a_loss_spike_is_skipped_before_the_optimizer_steps(session: dict[str, Any]) -> None:
    (bad,) = events(session["folders"]["spike"], "bad_step")
    assert bad["step"] == 20
    assert "spike" in bad["reason"]
    assert bad["gradient_norm"] is None
    assert session["codes"]["spike"] == 0


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("notice", "notice file"),
        ("max duration", "watch.max_duration"),
        ("evaluation", "SIGTERM on rank 1"),
        ("two signals", "SIGTERM"),
    ],
)
def test_a_wish_of_one_rank_stops_all_at_one_step_with_a_checkpoint(
    session: dict[str, Any], case: str, reason: str
) -> None:
    output = session["folders"][case]
    assert session["codes"][case] == 75
    (stop,) = events(output, "stop")
    assert reason.partition(" on ")[0] in stop["reason"]
    done = [line["step"] for line in events(output, "step")]
    assert last_checkpoint(output) == stop["step"] == max(done, default=0)
    assert not list(output.glob("checkpoints/.*partial"))


def test_an_evaluation_that_was_cut_short_reports_nothing(session: dict[str, Any]) -> None:
    assert events(session["folders"]["evaluation"], "eval") == []
    assert events(session["folders"]["evaluation"], "stop")[0]["step"] == 2


def test_a_run_that_was_stopped_in_its_last_evaluation_is_finished_by_the_same_command(session: dict[str, Any]) -> None:
    output = session["folders"]["last evaluation"]
    assert (session["codes"]["last evaluation"], session["codes"]["again"]) == (75, 0)
    assert events(output, "stop")[0]["step"] == events(output, "eval")[0]["step"] == 6
    assert json.loads((output / "finished.json").read_text())["held_out_loss"] < 6


def test_every_event_has_the_fields_of_the_schema(session: dict[str, Any]) -> None:
    seen = set()
    for output in session["folders"].values():
        for line in (output / "metrics.jsonl").read_text().splitlines():
            record = json.loads(line)
            fields, event = EVENTS[record["event"]], record["event"]
            seen.add(event)
            given = set(record) - {"event", "step", "time"}
            assert {name for name, known in fields.items() if not known.optional} <= given <= set(fields), event
    assert seen == set(EVENTS)


@pytest.mark.parametrize("fault", ["asleep in data", "suspended"])
def test_a_hang_ends_and_the_rank_at_fault_is_named(start: Start, tmp_path: Path, fault: str) -> None:
    case = Case(fault, tmp_path, ["strategy=ddp", "watch.stall_s=6", "metrics.sinks=[jsonl]"])
    ranks = run_ranks(start, [case])
    healthy = finish(ranks[0], code=6)
    assert "stalled: nothing finished for" in healthy
    named = {"asleep in data": "furthest behind: rank 1", "suspended": "silent: rank 1"}[fault]
    assert named in healthy
    assert "stop_wanted" in healthy  # its own stack: where it waited
    recorded = json.loads((tmp_path / "stalls" / "rank-0.json").read_text())
    assert recorded["gloo"]["entries"]
    if fault == "asleep in data":  # a suspended process can't tell any more where it is
        assert "step 3, waiting for data" in healthy
        assert named in finish(ranks[1], code=6)


def test_a_save_that_takes_longer_than_the_grace_ends(start: Start, tmp_path: Path) -> None:
    case = Case("slow save", tmp_path, ["strategy=ddp", "watch.grace_s=1"])
    outputs = [finish(rank, code=7) for rank in run_ranks(start, [case], world=1)]
    assert "asked to stop 1 s ago (SIGTERM), and no checkpoint is complete" in outputs[0]


def test_a_lost_node_leads_to_a_smaller_world_with_the_same_global_batch(start: Start, tmp_path: Path) -> None:
    reference, output = tmp_path / "reference", tmp_path / "elastic"
    steps = ["training.steps=40", "checkpoint.every_steps=5", "training.log_every=100", "metrics.sinks=[jsonl]"]
    port = free_port()
    agents = []
    for node in range(2):
        launcher = ["--nnodes=1:2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
        settings = "join_timeout=60,last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3"
        launcher += ["--rdzv-id=elastic", f"--rdzv-conf=is_host={1 - node},{settings}", "--max-restarts=3"]
        launcher += ["--local-addr=127.0.0.1", "--monitor-interval=0.2"]
        agents.append(start(command(2, f"output_dir={output}", *steps, launcher=launcher)))
    deadline = time.monotonic() + DEADLINE_S
    while not list(output.glob("checkpoints/step-00000005/manifest.json")):
        assert time.monotonic() < deadline, "no checkpoint was ever complete"
        time.sleep(0.02)
    kill_group(agents[1])
    finish(agents[0])
    finish(start(command(0, f"output_dir={reference}", *steps, "strategy=single")))
    assert [line["world"] for line in events(output, "start")][-2:] == [2, 1]
    resumed = events(output, "resume")[-1]
    assert resumed["samples_seen"] == resumed["step"] * 16
    expected = {line["step"]: line["loss"] for line in events(reference, "step")}
    losses = {line["step"]: line["loss"] for line in events(output, "step")}
    assert losses.keys() == expected.keys()
    assert list(losses.values()) == pytest.approx(list(expected.values()), rel=1e-4)


def kill_group(agent: Any) -> None:
    """A node that is gone: the agent, and its ranks, which have sessions of their own."""
    for pid in reversed(descendants(agent.pid)):
        signal_quietly(pid)
    agent.wait()


def descendants(pid: int) -> list[int]:
    children = (Path("/proc") / str(pid) / "task").glob("*/children")
    found = [int(child) for path in children for child in path.read_text().split()]
    return [pid, *(each for child in found for each in descendants(child))]


def signal_quietly(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def beat(rank: int, **changes: Any) -> Beat:
    facts = {"host": "node", "pid": 1, "number": 5, "ticks": 7, "step": 3, "phase": "gradients"}
    return Beat(rank=rank, **{**facts, **changes})


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ([beat(0), beat(1)], [beat(0, number=9), beat(1)], "silent: rank 1"),
        ([beat(0), beat(1)], [beat(0, number=9), beat(1, number=9, ticks=6)], "furthest behind: rank 1"),
        ([beat(0), beat(1)], [beat(0, number=9), beat(1, number=9)], "at the same place"),
        ([beat(0), None], [beat(0, number=9), None], "rank 1 never began"),
        (None, None, "store does not answer"),
    ],
)
def test_the_rank_that_the_others_wait_for_is_told_from_two_readings(
    before: list[Beat | None] | None, after: list[Beat | None] | None, verdict: str
) -> None:
    assert verdict in blame(before, after)


def test_a_spike_is_judged_by_the_usual_spread_of_losses() -> None:
    judge = BadSteps(WatchSection(spike_factor=6))
    for number in range(40):
        assert judge.problem(3.0 + 0.01 * (number % 3)) is None
        judge.good(3.0 + 0.01 * (number % 3))
    assert judge.problem(3.05) is None
    assert "spike" in (judge.problem(3.5) or "")
    assert "inf" in (judge.problem(float("inf")) or "")


def test_good_steps_in_between_begin_the_count_anew() -> None:
    judge = BadSteps(WatchSection(max_bad_steps=2))
    judge.bad(1, "the loss is nan")
    judge.good(3.0)
    judge.bad(3, "the loss is nan")
    with pytest.raises(BadStep, match="step 4"):
        judge.bad(4, "the loss is nan")
    assert judge.total == 3


def test_a_rank_that_waits_for_data_gives_up_when_it_is_asked_to_stop() -> None:
    arrived = threading.Event()

    class Slow:
        def valid_tokens(self, start: int, size: int) -> int:
            arrived.wait()
            return start + size

        def read(self, counters: list[int], *, size: int) -> Any:
            return counters, size

    asked = iter([False, True])
    with Feed(Slow(), size=4, micro=2, rank=0, world=1) as feed:  # type: ignore[arg-type]
        assert feed.step(0, give_up=lambda: next(asked), after_reading=arrived.set) is None
        assert not arrived.is_set()
    arrived.set()
