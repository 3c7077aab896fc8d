"""The supervisor under the real torchrun: a rendezvous on the held port, a failure on one node, and nothing left."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stand_in_fleet import LocalFleet

from infra.cluster import Endpoint
from launcher import nodes, start
from launcher.follow import follow
from launcher.node import processes
from launcher.states import Verdict
from launcher.status import ask_status


@pytest.fixture
def run(
    fleet: LocalFleet, root: Path, prepared: Any, script: Callable[[str], Path]
) -> Callable[[str], tuple[Verdict, list[str]]]:
    """Runs a script on both nodes to its end: (verdict, lines)."""

    def run(text: str) -> tuple[Verdict, list[str]]:
        path = script(text)
        code = SimpleNamespace(
            digest="0" * 16, path={node.name: str(path.parent.parent) for node in fleet.cluster.nodes}
        )
        plan = start.plan_script(str(path), arguments=(), name=None)
        lines: list[str] = []
        record = start.submit(fleet, plan, root=root, prepared=prepared, code=code, report=lines.append)  # type: ignore[arg-type]
        follow(fleet, record, root=root, show=lambda node, line: lines.append(f"{node} {line}"))  # type: ignore[arg-type]
        assert not any(processes.marked(record.id, node.name) for node in fleet.cluster.nodes)
        return ask_status(fleet, record, root=root).verdict, lines  # type: ignore[arg-type]

    return run


def test_ranks_of_both_nodes_find_one_another(run: Callable[[str], tuple[Verdict, list[str]]]) -> None:
    verdict, lines = run("import os; print('one of', os.environ['WORLD_SIZE'])")
    assert verdict.state == "finished"
    assert sorted(line for line in lines if "one of" in line) == [
        f"node-{r // 2} [rank {r}] one of 4" for r in range(4)
    ]


def test_nodes_may_have_ipv6_addresses_only(run: Callable[[str], tuple[Verdict, list[str]]], fleet: LocalFleet) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 here")
    six = [
        dataclasses.replace(node, private=Endpoint(host="::1", port=20000 + node.rank)) for node in fleet.cluster.nodes
    ]
    fleet.cluster = fleet.cluster.replace(nodes=tuple(six))
    verdict, lines = run(
        "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "one = torch.ones(1)\ndist.all_reduce(one)\nprint('sum', int(one))\n"
        "dist.destroy_process_group()"
    )
    assert verdict.state == "finished", lines
    assert sum("sum 4" in line for line in lines) == 4


def test_a_rank_that_exits_with_3_on_one_node_is_named_and_the_other_node_ends(
    run: Callable[[str], tuple[Verdict, list[str]]],
) -> None:
    verdict, _ = run(
        "import os, sys, time\n"
        "if os.environ['RANK'] == '2': print('bad data', file=sys.stderr); sys.exit(3)\n"
        "time.sleep(600)"
    )
    assert (verdict.state, verdict.why) == ("failed", "rank 2 on node-1 ended with exit code 3")
    assert verdict.first is not None
    assert verdict.first.lines[-1] == "bad data"


def test_a_rendezvous_port_that_was_taken_in_between_ends_both_nodes_and_is_named(
    run: Callable[[str], tuple[Verdict, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.ExitStack() as thieves:

        def steal_and_say_go(shell: Any, record: Any, go: Any) -> float:
            if shell.node.rank == 0:
                thief = thieves.enter_context(socket.socket())
                thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                thief.bind(("", go["rendezvous_port"]))
                thief.listen()
            return nodes.say_go(shell, record, go)

        monkeypatch.setattr(start, "say_go", steal_and_say_go)
        verdict, lines = run("import time; print('never'); time.sleep(600)")
    assert verdict.state == "failed"
    assert verdict.first is not None
    assert (verdict.first.node, verdict.first.rank) == ("node-0", None)
    assert "another port: The server socket has failed to listen" in verdict.first.lines[-1]
    assert "address already in use" in verdict.first.lines[-1]
    assert not [line for line in lines if "Traceback" in line or "never" in line]
