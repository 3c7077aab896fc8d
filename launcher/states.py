"""From what the nodes say to the state of the run: a pure function, so that every state can be tested and told apart.

preparing    nodes are claimed or being prepared, torchrun isn't started
running      torchrun runs on every node (or some have ended and the others are about to)
finished     every rank on every node ended with 0
failed       a rank failed, or the run couldn't be started
stopped      ended by `fab stop`, or by ranks that stopped with a checkpoint (exit code 75)
lost         a supervisor is gone without an end: killed, machine restarted, run's folder gone
unreachable  a node can't be asked: the answer isn't known, and nothing is concluded from silence
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from launcher.node.supervisor import STOPPED_WITH_CHECKPOINT, exit_text

State = Literal["preparing", "running", "finished", "failed", "stopped", "lost", "unreachable"]
ENDED: frozenset[State] = frozenset({"finished", "failed", "stopped", "lost"})
FINAL: frozenset[State] = frozenset({"finished", "failed", "stopped"})
"""States that can't change any more; `lost` can become stopped when its remains are cleared away."""


@dataclass(frozen=True, kw_only=True)
class NodeSays:
    """One node's answer about a run."""

    node: str
    rank: int
    state: Literal["absent", "waiting", "running", "ended", "lost", "unreachable"]
    facts: Mapping[str, Any]
    """The node's state.json; empty when absent or unreachable."""
    clock_offset_s: float = 0.0
    """This node's clock minus the user's machine's."""
    why: str = ""
    """Why it is unreachable."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The first thing that went wrong."""

    node: str
    rank: int | None
    """Global rank; None: torchrun itself."""
    exit_code: int | None
    """Negative for a signal."""
    at: float
    """On the user's machine's clock, Unix seconds."""
    lines: tuple[str, ...]
    disk: str = ""
    """Why the node's disk took no more, when it was full: the likely cause."""

    def __str__(self) -> str:
        who = "torchrun" if self.rank is None else f"rank {self.rank}"
        return f"{who} on {self.node} ended with {exit_text(self.exit_code)}{_because(self.disk)}"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The state of a run, and why."""

    state: State
    why: str
    first: Failure | None = None
    consequences: tuple[str, ...] = ()
    """Other failures, which followed from the first."""


def judge(nodes: Sequence[NodeSays]) -> Verdict:
    """The state of the run. `nodes`: all nodes of the run, in rank order."""
    says = {state: [n for n in nodes if n.state == state] for state in {n.state for n in nodes}}
    if silent := says.get("unreachable"):
        others = ", ".join(f"{n.node} says {n.state}" for n in nodes if n.state != "unreachable")
        return Verdict(state="unreachable", why=f"{_names(silent)} can't be asked ({silent[0].why}){_tail(others)}")
    if gone := says.get("lost"):
        left = [n.node for n in gone if n.facts.get("left")]
        rest = f"; processes of the run are left on {', '.join(left)}" if left else ""
        return Verdict(state="lost", why=f"the supervisor on {_names(gone)} is gone without an end{rest}")
    if missing := says.get("absent"):
        if len(missing) == len(nodes):
            return Verdict(state="lost", why="no node knows the run: it was never started, or the nodes are new")
        return Verdict(state="lost", why=f"{_names(missing)} doesn't know the run")
    if "running" in says:
        return Verdict(state="running", why=f"on {_names(says['running'])}")
    if "waiting" in says:
        return Verdict(state="preparing", why=f"{_names(says['waiting'])} waits for the word to go")
    return _judge_ended(nodes)


def _judge_ended(nodes: Sequence[NodeSays]) -> Verdict:
    failures = sorted((f for n in nodes if (f := _failure(n)) is not None), key=lambda pair: pair[0])
    own = [failure for (consequence, _), failure in failures if not consequence]
    if own:
        consequences = tuple(str(failure) for _, failure in failures if failure is not own[0])
        return Verdict(state="failed", why=str(own[0]), first=own[0], consequences=consequences)
    reasons = {n.facts.get("reason") for n in nodes}
    codes = [rank["exit_code"] for n in nodes for rank in n.facts.get("ranks", ())]
    if "stop" in reasons:
        bad = sorted({exit_text(c) for c in codes} - {exit_text(c) for c in (0, STOPPED_WITH_CHECKPOINT)})
        note = f" (ranks ended with {', '.join(bad)}: the last checkpoint may be older)" if bad or not codes else ""
        return Verdict(state="stopped", why=f"stop requested{note}")
    if "cancelled" in reasons:
        return Verdict(state="stopped", why="stopped before torchrun was started")
    if "no-go" in reasons:
        return Verdict(state="failed", why="the user's machine claimed the nodes and never said go")
    if "peer" in reasons:
        peers = sorted({f"{n.node} lost {n.facts.get('peer')}" for n in nodes if n.facts.get("reason") == "peer"})
        first = failures[0][1] if failures else None
        return Verdict(state="failed", why=f"the nodes lost each other: {', '.join(peers)}", first=first)
    if STOPPED_WITH_CHECKPOINT in codes:  # the others may say SIGTERM: torchrun ends them after the first
        return Verdict(state="stopped", why="the ranks stopped by themselves, with a checkpoint")
    full = [
        f"; {n.node}: {n.facts['disk']}, and what {n.node} said may be incomplete" for n in nodes if n.facts.get("disk")
    ]
    return Verdict(state="finished", why=f"every rank ended with exit code 0{''.join(full)}")


def _failure(node: NodeSays) -> tuple[tuple[bool, float], Failure] | None:
    """((is it a consequence, when), failure): the order in which failures explain a run."""
    found = node.facts.get("first_failure")
    if found is None:
        return None
    at = float(found["at"] or node.facts.get("ended_at") or 0.0) - node.clock_offset_s
    failure = Failure(
        node=node.node,
        rank=found["rank"],
        exit_code=found["exit_code"],
        at=at,
        lines=tuple(found["lines"]),
        disk=node.facts.get("disk") or "",
    )
    return (node.facts.get("reason") == "peer", at), failure


def _names(nodes: Sequence[NodeSays]) -> str:
    return ", ".join(n.node for n in nodes)


def _because(disk: str) -> str:
    return f" ({disk})" if disk else ""


def _tail(others: str) -> str:
    return f"; {others}" if others else ""
