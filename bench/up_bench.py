"""Seconds of `pulumi up` over the number of local nodes: does it grow with the nodes?"""

from __future__ import annotations

from bench.stack import local_stack


def measure() -> dict[str, float]:
    figures = {}
    for nodes in (2, 4, 8, 16):
        with local_stack(nodes=nodes, processes_per_node=1) as (_, seconds):
            figures[f"{nodes} nodes, s"] = round(seconds, 2)
    figures["16 / 2 nodes"] = round(figures["16 nodes, s"] / figures["2 nodes, s"], 2)
    return figures
