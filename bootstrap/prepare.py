"""From machines that answer to nodes that can train: runs the steps on every node at once, and says who is ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bootstrap.code_tree import SourceTree, collect
from bootstrap.errors import NotBootstrapped, StepError, UsageError
from bootstrap.fleet import Fleet, Outcomes, Shell
from bootstrap.steps import STEPS
from bootstrap.steps.base import Context, Facts, Step, gather, read_lock
from bootstrap.steps.code import send_code

State = Literal["fit", "applied", "to do"]


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """What was found and done on one node."""

    node: str
    steps: dict[str, State]
    notes: tuple[str, ...]
    free_gib: float
    clock_skew_s: float


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Every node can train."""

    python: dict[str, str]
    """Node name -> absolute path of the interpreter of its environment."""


@dataclass(frozen=True, kw_only=True)
class CodeTree:
    """The code is on every node."""

    digest: str
    path: dict[str, str]
    """Node name -> absolute path of its folder."""


def bootstrap(
    fleet: Fleet,
    *,
    root: Path,
    only: Sequence[str] | None = None,
    dry_run: bool = False,
    report: Callable[[str], None] = print,
) -> dict[str, Readiness]:
    """Runs the steps (or `only` these) on each node; what is fit already is left alone.

    Raises the failed node's error, or SeveralNodes; the other nodes are finished all the same.
    """
    return bootstrap_each(fleet, root=root, only=only, dry_run=dry_run, report=report).require("fab bootstrap")


def bootstrap_each(
    fleet: Fleet, *, root: Path, only: Sequence[str] | None, dry_run: bool, report: Callable[[str], None]
) -> Outcomes[Readiness]:
    """As `bootstrap`, with successes and failures side by side. Raises UsageError for an unknown step."""
    steps = _chosen(only)
    context = Context(lock=read_lock(root), code=collect(root))
    return fleet.on_each(lambda shell: _prepare(shell, steps, context, dry_run=dry_run, report=report))


def ready(fleet: Fleet, *, root: Path) -> Prepared:
    """Whether every node has this checkout's environment; changes nothing, one round trip.

    Raises NotBootstrapped naming the nodes that haven't.
    """
    context = Context(lock=read_lock(root), code=SourceTree({}))
    facts = fleet.on_each(lambda shell: gather(shell, context)).require("asking the nodes")
    lacking = [name for name, fact in facts.items() if not fact.environment_complete]
    if lacking:
        raise NotBootstrapped(
            f"{', '.join(lacking)}: environment {context.lock_digest} of this checkout isn't there: run `fab bootstrap`"
        )
    return Prepared(python={node.name: f"{context.environment(node)}/bin/python" for node in fleet.cluster.nodes})


def sync_code(fleet: Fleet, *, root: Path, extra: Sequence[Path] = ()) -> CodeTree:
    """Puts the trainer and `extra` (see `collect`) on every node that hasn't this very content yet."""
    context = Context(lock=b"", code=collect(root, extra))

    def sync(shell: Shell) -> str:
        path = context.code_path(shell.node)
        return path if shell.exists(path) else send_code(shell, context)

    return CodeTree(digest=context.code.digest, path=fleet.on_each(sync).require("sending the code"))


def _chosen(only: Sequence[str] | None) -> tuple[Step, ...]:
    names = [step.name for step in STEPS]
    for name in only or ():
        if name not in names:
            raise UsageError(f"--only {name}: there is no such step; there are {', '.join(names)}")
    return tuple(step for step in STEPS if only is None or step.name in only)


def _prepare(
    shell: Shell, steps: Sequence[Step], context: Context, *, dry_run: bool, report: Callable[[str], None]
) -> Readiness:
    """One node, step by step; what a step has changed is looked at again before it counts."""
    facts = gather(shell, context)
    states: dict[str, State] = {}
    notes: list[str] = []
    for step in steps:
        verdict = step.check(shell.node, facts, context)
        if verdict.note:
            notes.append(verdict.note)
        if verdict.fit:
            states[step.name] = "fit"
        elif dry_run:
            states[step.name] = "to do"
            report(f"{shell.node.name} {step.name}: to do: {verdict.why}")
        else:
            report(f"{shell.node.name} {step.name}: {verdict.why}")
            facts = _apply(shell, step, facts, context)
            states[step.name] = "applied"
            report(f"{shell.node.name} {step.name}: done")
    return Readiness(
        node=shell.node.name,
        steps=states,
        notes=tuple(notes),
        free_gib=facts.free_gib,
        clock_skew_s=facts.clock_skew_s,
    )


def _apply(shell: Shell, step: Step, facts: Facts, context: Context) -> Facts:
    step.apply(shell, facts, context)
    facts = gather(shell, context)
    verdict = step.check(shell.node, facts, context)
    if not verdict.fit:
        raise StepError(f"{shell.node.name}, step {step.name}: still not as it should be: {verdict.why}")
    return facts
