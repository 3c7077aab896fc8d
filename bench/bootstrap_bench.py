"""Seconds of `fab bootstrap` on 8 local nodes: the first time, and when all is done (goal: under 2 s)."""

from __future__ import annotations

from bench.stack import local_stack, run


def measure() -> dict[str, float]:
    with local_stack(nodes=8, processes_per_node=1) as (cluster, _):
        first = run("fab", "bootstrap", "--stack", cluster.stack)
        again = min(run("fab", "bootstrap", "--stack", cluster.stack) for _ in range(3))
    return {"first, s": round(first, 2), "again (best of 3), s": round(again, 2)}
