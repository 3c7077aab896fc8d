"""Stopping, bad steps and hangs, with real ranks and faults built in (tests/trainer/faulty.py)."""

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.trainer import faulty, ranks
from tests.trainer.conftest import DEADLINE_S, RECIPE, Start, command, events, finish, free_port, kill_group
from trainer.config import WatchSection
from trainer.data.prefetch import Feed
from trainer.errors import BadStep, TrainerError
from trainer.metrics.schema import EVENTS
from trainer.watch.bad_steps import BadSteps
from trainer.watch.beats import Beat, blame
from trainer.watch.failures import explained, notes_in

FOREVER = "training.steps=1e6"


@dataclass(frozen=True)
class Ended:
    """What two ranks with a fault have left."""

    folder: Path
    outcomes: list[ranks.Outcome]

    @property
    def code(self) -> int | None:
        """The exit code, the same of both ranks."""
        first, second = (rank.exit_code for rank in self.outcomes)
        assert first == second, self.outcomes
        return first


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """All cases that end by themselves."""
    root = tmp_path_factory.mktemp("watch")
    common = ["strategy=ddp", "metrics.sinks=[jsonl]"]

    def run(fault: str, name: str, *overrides: str, **settings: Any) -> Ended:
        job = partial(faulty.trainer, **settings)
        return Ended(root / name, ranks.outcomes(2, job, fault, root / name, *overrides))

    return {
        "plain": run("none", "plain", *common),
        "bad loss": run("bad loss", "bad loss", *common),
        "bad gradients": run("bad gradients", "bad gradients", "metrics.sinks=[jsonl]"),
        "stop on bad": run("bad loss", "stop on bad", *common, "watch.on_bad_step=stop"),
        "always bad": run("always bad", "always bad", *common, "watch.max_bad_steps=2"),
        "never good": run("none", "never good", *common, "model.rope_theta=1e-300"),
        "notice": run("notice", "notice", *common, FOREVER, notice_file=root / "notice file"),
        "max duration": run("none", "max duration", *common, FOREVER, "watch.max_duration=1s"),
        "evaluation": run("stop in evaluation", "evaluation", *common, "training.evaluate_every=2"),
        "last evaluation": run("stop in evaluation", "last evaluation", *common),
        "again": run("none", "last evaluation", *common),
        "two signals": run("two signals", "two signals", *common),
    }


def last_checkpoint(output: Path) -> int:
    return max(int(path.parent.name.rpartition("-")[2]) for path in output.glob("checkpoints/step-*/manifest.json"))


@pytest.mark.parametrize("case", ["bad loss", "bad gradients"])
def test_a_step_whose_numbers_are_none_on_one_rank_is_skipped_on_all(session: dict[str, Ended], case: str) -> None:
    output = session[case].folder
    assert session[case].code == 0
    (bad,) = events(output, "bad_step")
    assert (bad["step"], bad["in_a_row"], bad["total"], bad["gradient_norm"]) == (3, 1, 1, None)
    assert (bad["loss"] is None) == (case == "bad loss")
    assert [line["step"] for line in events(output, "step")] == [1, 2, 4, 5, 6]
    assert events(output, "window")[-1]["bad_steps"] == 1
    assert json.loads((output / "finished.json").read_text())["samples_seen"] == 6 * 16  # the data moved on
    for rank in session[case].outcomes:
        assert "weights after the bad step: unchanged" in rank.output


@pytest.fixture(scope="module")
def losses_of_ddp(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    return bad_in_three_ways(tmp_path_factory.mktemp("ddp"), "strategy=ddp")


def bad_in_three_ways(output: Path, *strategy: str) -> dict[int, float]:
    """Step → loss of a run with three bad steps and a checkpoint after the third."""
    settings = ["training.steps=22", "checkpoint.every_steps=20", "training.evaluate_every=30", "watch.spike_factor=20"]
    settings += [*strategy, "training.log_every=30", "metrics.sinks=[jsonl]"]
    for ended in ranks.outcomes(2, faulty.trainer, "bad in three ways", output, *settings):
        assert ended.exit_code == 0, ended.output
        for step in (3, 5, 20):
            assert f"state after step {step}: unchanged" in ended.output
    bad = events(output, "bad_step")
    assert [line["step"] for line in bad] == [3, 5, 20]
    for line, said in zip(bad, ("the loss is nan", "the gradient norm is", "is a spike"), strict=True):
        assert said in line["reason"]
        assert line["gradient_norm"] is None
    losses = {line["step"]: line["loss"] for line in events(output, "step")}
    shutil.rmtree(output / "checkpoints" / "step-00000022")
    for ended in ranks.outcomes(2, faulty.trainer, "none", output, *settings):
        assert ended.exit_code == 0, ended.output
    assert events(output, "resume")[-1]["step"] == 20
    again = {line["step"]: line["loss"] for line in events(output, "step")[len(losses) :]}
    assert again == {step: losses[step] for step in (21, 22)}
    assert events(output, "window")[-1]["bad_steps"] == 3
    return losses


@pytest.mark.ranks_import("deepspeed.runtime.zero.muon.muon_optimizer", "trainer.strategies.deepspeed")
@pytest.mark.parametrize("strategy", ["hsdp", "zero1", "zero2", "zero3"])
def test_bad_steps_of_one_rank_leave_every_strategy_s_state_alone(
    losses_of_ddp: dict[int, float], tmp_path: Path, strategy: str
) -> None:
    zero = strategy != "hsdp"
    chosen = ["strategy=deepspeed", f"strategy.stage={strategy[-1]}"] if zero else ["strategy=hsdp"]
    losses = bad_in_three_ways(tmp_path, *chosen)
    assert losses.keys() == losses_of_ddp.keys()
    assert list(losses.values()) == pytest.approx(list(losses_of_ddp.values()), rel=1e-4)


def test_a_bad_step_ends_the_run_if_the_recipe_says_so(session: dict[str, Ended]) -> None:
    assert session["stop on bad"].code == 4
    assert "step 3: the loss is nan" in session["stop on bad"].outcomes[0].output
    assert [line["step"] for line in events(session["stop on bad"].folder, "bad_step")] == [3]


def test_too_many_bad_steps_in_a_row_end_the_run(session: dict[str, Ended]) -> None:
    assert session["always bad"].code == 4
    for rank in session["always bad"].outcomes:
        assert "bad step 2 in a row" in rank.output
        assert "weights after the bad step: unchanged" in rank.output


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
    session: dict[str, Ended], case: str, reason: str
) -> None:
    output = session[case].folder
    assert session[case].code == 75
    (stop,) = events(output, "stop")
    assert reason.partition(" on ")[0] in stop["reason"]
    done = [line["step"] for line in events(output, "step")]
    assert last_checkpoint(output) == stop["step"] == max(done, default=0)
    assert not list(output.glob("checkpoints/.*partial"))


def test_an_evaluation_that_was_cut_short_reports_nothing(session: dict[str, Ended]) -> None:
    assert events(session["evaluation"].folder, "eval") == []
    assert events(session["evaluation"].folder, "stop")[0]["step"] == 2


def test_a_run_that_was_stopped_in_its_last_evaluation_is_finished_by_the_same_command(
    session: dict[str, Ended],
) -> None:
    output = session["last evaluation"].folder
    assert (session["last evaluation"].code, session["again"].code) == (75, 0)
    assert events(output, "stop")[0]["step"] == events(output, "eval")[0]["step"] == 6
    assert json.loads((output / "finished.json").read_text())["held_out_loss"] < 6


def test_every_event_has_the_fields_of_the_schema(session: dict[str, Ended]) -> None:
    seen = set()
    for ended in session.values():
        for line in (ended.folder / "metrics.jsonl").read_text().splitlines():
            record = json.loads(line)
            fields, event = EVENTS[record["event"]], record["event"]
            seen.add(event)
            given = set(record) - {"event", "step", "time"}
            assert {name for name, known in fields.items() if not known.optional} <= given <= set(fields), event
    assert seen == set(EVENTS)


@pytest.mark.parametrize("fault", ["asleep in data", "suspended"])
def test_a_hang_ends_and_the_rank_at_fault_is_named(tmp_path: Path, fault: str) -> None:
    settings = ["strategy=ddp", "watch.stall_s=6", "metrics.sinks=[jsonl]"]
    with ranks.running(2, faulty.trainer, fault, tmp_path, *settings) as (first, second):
        healthy = first.finish()
        assert healthy.exit_code == 6, healthy.output
        named = {"asleep in data": "furthest behind: rank 1", "suspended": "silent: rank 1"}[fault]
        assert named in healthy.output
        if fault == "asleep in data":  # a suspended process can't tell any more where it is
            assert "step 3, waiting for data" in healthy.output
            guilty = second.finish()
            assert guilty.exit_code == 6
            assert named in guilty.output
    assert "stalled: nothing finished for" in healthy.output
    assert "stop_wanted" in healthy.output  # its own stack: where it waited
    recorded = json.loads((tmp_path / "stalls" / "rank-0.json").read_text())
    assert recorded["gloo"]["entries"]


def test_the_ranks_that_outlive_a_killed_one_say_what_they_miss(tmp_path: Path) -> None:
    left, lost = ranks.outcomes(2, faulty.trainer, "killed", tmp_path, "strategy=ddp")
    assert lost.exit_code == -signal.SIGKILL
    assert left.exit_code == 1, left.output
    assert "lost its connection to another rank ([127.0.0.1]:" in left.output
    assert "Traceback" not in left.output


def test_a_save_that_takes_longer_than_the_grace_ends(tmp_path: Path) -> None:
    (ended,) = ranks.outcomes(1, faulty.trainer, "slow save", tmp_path, "strategy=ddp", "watch.grace_s=1")
    assert ended.exit_code == 7, ended.output
    assert "asked to stop 1 s ago (SIGTERM), and no checkpoint is complete" in ended.output


def test_worlds_that_shrink_and_grow_again_train_with_the_same_global_batch(start: Start, tmp_path: Path) -> None:
    """One node of two is lost in a save, and what it had written is no checkpoint; another one joins later."""
    reference, output, in_save, alone = (tmp_path / name for name in ("reference", "elastic", "in save", "alone"))
    steps = ["training.steps=40", "checkpoint.every_steps=5", "training.log_every=100", "metrics.sinks=[jsonl]"]
    port = free_port()

    def agent(node: int, **faults: Path) -> Any:
        launcher = ["--nnodes=1:2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
        settings = "join_timeout=60,last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3"
        launcher += ["--rdzv-id=elastic", f"--rdzv-conf=is_host={1 - node},{settings}", "--max-restarts=3"]
        launcher += ["--local-addr=127.0.0.1", "--monitor-interval=0.2"]
        argv = faulty_command("stuck save, then alone", output, *steps, launcher=launcher)
        # Otherwise torch 2.15 gives a node that joins later no address, and all agents end after the timeout.
        environment = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        return start(argv, environment={**environment, **{name: str(path) for name, path in faults.items()}})

    survivor, lost = agent(0, ALONE=alone), agent(1, STUCK_SAVE=in_save)
    wait_for(in_save)
    assert len(list(output.glob("checkpoints/.step-00000010.partial/__*"))) > 0
    kill_group(lost)
    wait_for(alone)
    finish(agent(1))
    finish(survivor)
    ranks.train(0, RECIPE, [f"output_dir={reference}", *steps, "strategy=single"])
    assert [line["world"] for line in events(output, "start")] == [2, 1, 2]
    shrunk, grown = events(output, "resume")
    assert (shrunk["step"], shrunk["samples_seen"]) == (5, 5 * 16)
    assert (grown["step"], grown["samples_seen"]) == (11, 11 * 16)
    expected = {line["step"]: line["loss"] for line in events(reference, "step")}
    losses = {line["step"]: line["loss"] for line in events(output, "step")}
    assert losses.keys() == expected.keys()
    assert list(losses.values()) == pytest.approx(list(expected.values()), rel=1e-4)
    assert not list(output.glob("checkpoints/.step-*"))


def faulty_command(fault: str, output: Path, *settings: str, launcher: Sequence[str]) -> list[str]:
    argv = command(2, f"output_dir={output}", *settings, launcher=launcher)
    place = argv.index("trainer")
    return [*argv[:place], "tests.trainer.faulty", fault, *argv[place + 1 :]]


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not path.exists():
        assert time.monotonic() < deadline, f"there was never a file {path.name}"
        time.sleep(0.02)


def test_ranks_whose_agent_was_killed_stop_with_a_checkpoint(start: Start, tmp_path: Path) -> None:
    agent = start(command(2, f"output_dir={tmp_path}", "strategy=ddp", FOREVER, "metrics.sinks=[jsonl]"))
    wait_for(tmp_path / "metrics.jsonl")
    agent.kill()
    output, _ = agent.communicate(timeout=DEADLINE_S)  # the ranks write to it until they end
    (stop,) = events(tmp_path, "stop")
    assert "torchrun's process on " in stop["reason"]
    assert f"stopped at step {stop['step']} of" in output


def test_a_rank_whose_store_is_gone_says_so_instead_of_a_traceback() -> None:
    reason = explained(dist.DistNetworkError("Broken pipe"), notes_in(dist.HashStore()), rank=1, world=2)
    assert isinstance(reason, TrainerError)
    assert re.match(r"rank 1 on \S+ lost its connection to the store of the ranks", str(reason))


def test_ranks_whose_agent_was_killed_before_they_joined_end(start: Start, tmp_path: Path) -> None:
    launcher = ["--standalone", "--nproc-per-node=2"]
    argv = faulty_command("agent ends before joining", tmp_path / "run", "strategy=ddp", FOREVER, launcher=launcher)
    agent = start(argv, environment={"BEFORE_JOINING": str(tmp_path)})
    for rank in ("0", "1"):
        wait_for(tmp_path / rank)
    agent.kill()
    output, _ = agent.communicate(timeout=DEADLINE_S)
    assert "is gone, and not all ranks had joined" in output


def _joins_alone(listening: Path) -> None:
    """Rank 0 of 2, whose other rank never comes."""
    if os.environ["RANK"] == "0":
        threading.Thread(target=_tell_when_listening, args=(listening,), daemon=True).start()
        ranks.trainer(RECIPE, "strategy=ddp")


def _tell_when_listening(listening: Path) -> None:
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"]))):
            listening.touch()
            return
        time.sleep(0.02)


def test_a_rank_that_waits_for_others_can_be_stopped(tmp_path: Path) -> None:
    with ranks.running(2, _joins_alone, tmp_path / "listening") as (waiting, _):
        wait_for(tmp_path / "listening")
        os.kill(waiting.pid, signal.SIGTERM)
        ended = waiting.finish()
    assert ended.exit_code == -signal.SIGTERM, ended.output


def test_restarted_ranks_take_nothing_for_theirs_that_an_earlier_start_left(start: Start, tmp_path: Path) -> None:
    """torchrun's store is the same one in all four starts: neither an old reason nor an old wish to stop counts."""
    launcher = ["--nproc-per-node=2", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-id=again"]
    launcher += [f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--local-addr=127.0.0.1", "--monitor-interval=0.2"]
    settings = ["strategy=ddp", "training.steps=6", "checkpoint.every_steps=100", "metrics.sinks=[jsonl]"]
    output = finish(start(faulty_command("another end each start", tmp_path / "run", *settings, launcher=launcher)))
    blamed = [int(rank) for rank in re.findall(r"the disk of rank (\d) is gone", output)]
    assert [rank for rank, _ in itertools.groupby(blamed)] == [1, 0], output
    assert len(events(tmp_path / "run", "start")) == 4
    assert [line["step"] for line in events(tmp_path / "run", "step")][-1] == 6


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


def test_a_run_that_ends_before_enough_bad_steps_has_not_finished(session: dict[str, Ended]) -> None:
    ended = session["never good"]
    assert ended.code == 4
    assert "held-out loss at the last step, 6, is nan" in ended.outcomes[0].output
    assert not (ended.folder / "finished.json").exists()
    judge = BadSteps(WatchSection())
    judge.bad(1, "the loss is nan")
    judge.end(2, held_out_loss=3.0)
    with pytest.raises(BadStep, match="no step of 1 was good"):
        judge.end(1, held_out_loss=None)


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
