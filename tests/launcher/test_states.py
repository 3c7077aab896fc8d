"""What the nodes say -> the state of the run."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.states import NodeSays, judge


def says(rank: int, state: str, *, offset_s: float = 0.0, **facts: Any) -> NodeSays:
    return NodeSays(node=f"node-{rank}", rank=rank, state=state, facts=facts, clock_offset_s=offset_s, why="no answer")  # type: ignore[arg-type]


def ended(rank: int, *, codes: tuple[int | None, ...] = (0, 0), reason: str = "exit", **facts: Any) -> NodeSays:
    ranks = [{"rank": 2 * rank + i, "exit_code": code} for i, code in enumerate(codes)]
    return says(rank, "ended", reason=reason, ranks=ranks, **{"first_failure": None, **facts})


def failure(rank: int | None, exit_code: int, at: float) -> dict[str, Any]:
    return {"rank": rank, "exit_code": exit_code, "at": at, "lines": ["the last line"]}


@pytest.mark.parametrize(
    ("nodes", "state", "why"),
    [
        ([says(0, "waiting"), says(1, "waiting")], "preparing", "word to go"),
        ([says(0, "running"), says(1, "running")], "running", "node-0, node-1"),
        ([ended(0), says(1, "running")], "running", "node-1"),
        ([ended(0), ended(1)], "finished", "exit code 0"),
        (
            [ended(0, codes=(75, 75), reason="stop"), ended(1, codes=(75, 75), reason="stop")],
            "stopped",
            "stop requested",
        ),
        ([ended(0, codes=(75, 75)), ended(1, codes=(75, 75))], "stopped", "with a checkpoint"),
        ([ended(0, codes=(-9, 75), reason="stop"), ended(1, codes=(75, 75), reason="stop")], "stopped", "SIGKILL"),
        (
            [ended(0, codes=(), reason="cancelled"), ended(1, codes=(), reason="cancelled")],
            "stopped",
            "before torchrun",
        ),
        ([ended(0, codes=(), reason="no-go"), ended(1, codes=(), reason="no-go")], "failed", "never said go"),
        ([ended(0, reason="peer", peer="node-1"), says(1, "lost", left={})], "lost", "node-1"),
        ([says(0, "running"), says(1, "lost", left={7: "python"})], "lost", "are left on node-1"),
        ([says(0, "running"), says(1, "unreachable")], "unreachable", "node-0 says running"),
        ([ended(0), says(1, "unreachable")], "unreachable", "node-1 can't be asked"),
        ([says(0, "absent"), says(1, "absent")], "lost", "never started"),
        ([ended(0), says(1, "absent")], "lost", "node-1 doesn't know"),
    ],
)
def test_each_state_is_reached(nodes: list[NodeSays], state: str, why: str) -> None:
    verdict = judge(nodes)
    assert verdict.state == state
    assert why in verdict.why


def test_the_first_failing_rank_is_named_and_its_peers_are_consequences() -> None:
    verdict = judge(
        [
            ended(0, codes=(1, -15), reason="peer", peer="node-1", first_failure=failure(0, 1, 100.0)),
            ended(1, codes=(-15, 3), first_failure=failure(3, 3, 101.0)),
        ]
    )
    assert (verdict.state, verdict.why) == ("failed", "rank 3 on node-1 ended with exit code 3")
    assert verdict.first is not None
    assert verdict.first.lines == ("the last line",)
    assert verdict.consequences == ("rank 0 on node-0 ended with exit code 1",)


def test_a_full_disk_is_told_whether_the_run_failed_or_finished() -> None:
    full = {"disk": "disk full at /runs (0 MiB free): make room"}
    failed = judge([ended(0, reason="peer"), ended(1, codes=(1, -15), first_failure=failure(2, 1, 1.0), **full)])
    assert failed.why == f"rank 2 on node-1 ended with exit code 1 ({full['disk']})"
    finished = judge([ended(0), ended(1, **full)])
    assert (finished.state, f"node-1: {full['disk']}" in finished.why) == ("finished", True)


def test_failures_are_ordered_by_one_clock() -> None:
    late = ended(0, codes=(3, 0), first_failure=failure(0, 3, 100.0))
    early = NodeSays(
        node="node-1",
        rank=1,
        state="ended",
        clock_offset_s=60.0,
        facts=ended(1, first_failure=failure(2, -9, 159.0)).facts,
    )
    assert judge([late, early]).why == "rank 2 on node-1 ended with SIGKILL"


def test_a_failure_before_the_stop_stays_a_failure() -> None:
    verdict = judge([ended(0, codes=(3, 75), reason="stop", first_failure=failure(0, 3, 1.0)), ended(1, reason="stop")])
    assert verdict.state == "failed"


def test_torchrun_killed_is_a_failure_of_torchrun() -> None:
    verdict = judge(
        [ended(0, codes=(), first_failure=failure(None, -9, 1.0)), ended(1, codes=(), reason="peer", peer="node-0")]
    )
    assert (verdict.state, verdict.why) == ("failed", "torchrun on node-0 ended with SIGKILL")
