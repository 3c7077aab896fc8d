"""Can we work there at all: Python, a writable place with room, and a clock that is known.

That two nodes are two machines needs no look: each has shown its own host key, and the Cluster has no key twice.
"""

from __future__ import annotations

from bootstrap.errors import StepError
from bootstrap.fleet import Shell
from bootstrap.steps.base import Context, Facts, Verdict
from infra.cluster import Node

OLDEST_PYTHON = (3, 11)
LEAST_FREE_GIB = 1.0
NOTABLE_SKEW_S = 2.0


class Reach:
    name = "reach"

    def check(self, node: Node, facts: Facts, context: Context) -> Verdict:  # noqa: ARG002
        note = f"{facts.free_gib:.0f} GiB free"
        if abs(facts.clock_skew_s) >= NOTABLE_SKEW_S:
            note += f", {describe_skew(facts.clock_skew_s)}"
        return Verdict(why=_obstacle(node, facts), note=note)

    def apply(self, shell: Shell, facts: Facts, context: Context) -> None:  # noqa: ARG002
        # Nothing of this can be put right without the machine's owner.
        raise StepError(f"{shell.node.name}, step reach: {_obstacle(shell.node, facts)}")


def _obstacle(node: Node, facts: Facts) -> str | None:
    if facts.python_version < OLDEST_PYTHON:
        has = ".".join(map(str, facts.python_version))
        return f"its newest Python is {has}, needed is 3.11 or newer: choose a newer image, or install python3.11 there"
    if facts.writable_parent is None:
        return f"{node.user} may not write at {node.work_dir}: correct the rights there"
    if not facts.environment_complete and facts.free_gib < LEAST_FREE_GIB:
        return f"disk full on {node.name}:{node.work_dir} ({facts.free_gib:.2f} GiB free): make room there"
    return None


def describe_skew(skew_s: float) -> str:
    """The clock's offset in words, as seen from the user's machine."""
    return f"clock {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} this machine's"
