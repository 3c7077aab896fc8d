"""The life of a run as `fab` tasks. Imports of what does the work stand inside, so that `fab --list` stays quick."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from invoke.context import Context
from invoke.tasks import task

from infra.cli import command

if TYPE_CHECKING:
    from bootstrap.fleet import Fleet
    from launcher.record import RunRecord

DEFAULT_RECIPE = "trainer/recipes/demo.yaml"
_STACK = "stack name (default: the selected one)"
_RUN = "run id, its beginning or its end (default: the newest run)"


@task(
    auto_shortflags=False,
    iterable=["set_"],
    help={
        "recipe": f"recipe file (default: {DEFAULT_RECIPE})",
        "strategy": "ddp, fsdp, hsdp or deepspeed: overrides the recipe's",
        "set": "key=value: overrides a key of the recipe; may be repeated",
        "script": "your own torchrun-able script instead of our trainer; its arguments follow after --",
        "detach": "start, print the run id and return",
        "name": "experiment name: runs of one name resume one another",
        "stack": _STACK,
    },
)
@command
def train(
    _context: Context,
    recipe: str | None = None,
    strategy: str | None = None,
    set_: list[str] | None = None,
    script: str | None = None,
    detach: bool = False,
    name: str | None = None,
    stack: str | None = None,
) -> None:
    """Start a run on all nodes and follow it; Ctrl-C detaches and the run goes on.

    Exit codes: 0 finished, 1 failed, 2 bad recipe or script, 3 another run is on, 4 lost, 5 unreachable, 75 stopped,
    130 detached.

    Example: fab train --strategy fsdp --set training.steps=100
    Example: fab train --script my_train.py -- --epochs 3
    """
    from bootstrap.arguments import after_dashes
    from bootstrap.fleet import Fleet
    from bootstrap.prepare import ready, sync_code
    from infra.stack import current_stack, project_root, read_cluster
    from launcher import start
    from launcher.errors import UsageError

    root = project_root()
    cluster = read_cluster(root, stack or current_stack(root))
    if script is not None:
        if recipe is not None or strategy is not None or set_:
            raise UsageError(
                "--script runs your own program: give it its options after --, not --recipe, --strategy or --set"
            )
        plan = start.plan_script(script, arguments=after_dashes(), name=name)
    else:
        if after_dashes():
            raise UsageError("arguments after -- are for --script; for a recipe write --set key=value")
        settings = [*([f"strategy={strategy}"] if strategy else []), *(set_ or [])]
        plan = start.plan_recipe(
            root, recipe or DEFAULT_RECIPE, settings=settings, name=name, world_size=cluster.world_size
        )
    with Fleet(cluster, root=root) as fleet:
        prepared = ready(fleet, root=root)
        code = sync_code(fleet, root=root, extra=plan.extra)
        record = start.submit(fleet, plan, root=root, prepared=prepared, code=code, report=_say)
        if detach:
            _say("detached: the run goes on")
            return
        _follow_to_the_end(fleet, record, root=root)


@task(auto_shortflags=False, help={"run": _RUN, "stack": _STACK})
@command
def attach(_context: Context, run: str | None = None, stack: str | None = None) -> None:
    """Follow a run from where the last follower stopped; Ctrl-C detaches. Ends like `fab train`.

    Example: fab attach
    """
    with _run_on_its_fleet(run, stack) as (root, fleet, record):
        _say(f"run {record.id}; stop: fab stop --run {record.id}")
        _follow_to_the_end(fleet, record, root=root)


@task(
    auto_shortflags=False,
    help={"run": "one run (default: all)", "json": "as JSON, with all that the nodes say", "stack": _STACK},
)
@command
def status(_context: Context, run: str | None = None, json: bool = False, stack: str | None = None) -> None:
    """Show the runs of a stack: preparing, running, finished, failed, stopped, lost or unreachable.

    Example: fab status --json
    """
    from itertools import islice

    from infra.stack import current_stack, project_root
    from launcher.record import Runs
    from launcher.status import SHOWN, stack_status, table

    root = project_root()
    runs = Runs(root)
    stack = stack or current_stack(root)
    records = [runs.load(run)] if run else list(islice(runs.newest_first(stack), SHOWN))
    statuses = stack_status(root, stack, records)
    if json:
        _say(_as_json([s.to_json() for s in statuses]))
    else:
        _say(table(statuses) if statuses else f"stack {stack}: no runs yet: start one with `fab train`")


@task(
    auto_shortflags=False,
    help={
        "run": _RUN,
        "node": "only this node",
        "rank": "only this global rank",
        "follow": "go on until the run has ended",
        "stack": _STACK,
    },
)
@command
def logs(
    _context: Context,
    run: str | None = None,
    node: str | None = None,
    rank: str | None = None,
    follow: bool = False,
    stack: str | None = None,
) -> None:
    """Print a run's output from its beginning: whole lines, each with its node and rank.

    Example: fab logs --rank 0
    """
    from infra.stack import project_root
    from launcher.errors import UsageError
    from launcher.follow import follow as follow_run
    from launcher.follow import write_line

    root = project_root()
    if rank is not None and not rank.isdecimal():
        raise UsageError(f"--rank {rank}: write a global rank, 0 or more")
    number = None if rank is None else int(rank)

    def show(of: str, line: str) -> None:
        if node in (None, of) and (number is None or line.startswith(f"[rank {number}] ")):
            write_line(of, line)

    record = _bring_logs_here(run, stack, strict=follow)
    if number is not None and number >= (ranks := record.read_cluster().world_size):
        raise UsageError(f"--rank {number}: run {record.id} has ranks 0 to {ranks - 1}")
    if node is not None:
        record.read_cluster().node(node)
    _show_local(root, record, node, number)
    if follow:
        with _run_on_its_fleet(record.id, stack) as (_, fleet, found):
            follow_run(fleet, found, root=root, show=show)


@task(
    auto_shortflags=False,
    help={"run": _RUN, "grace_s": "seconds for a last checkpoint before SIGKILL (at most 120)", "stack": _STACK},
)
@command
def stop(_context: Context, run: str | None = None, grace_s: int = 120, stack: str | None = None) -> None:
    """Stop a run on all nodes, with a last checkpoint, and leave no process behind. Nothing to stop is success.

    Example: fab stop
    """
    from infra.stack import current_stack, project_root
    from launcher.record import Runs
    from launcher.report import close
    from launcher.states import FINAL
    from launcher.stop import stop as stop_run

    root = project_root()
    name = stack or current_stack(root)
    if run is None:
        open_runs = [record for record in Runs(root).newest_first(name) if record.state not in FINAL]
        if not open_runs:
            _say(f"stack {name}: there is nothing to stop")
            return
        # A run that is lost with its machines never ends: it must not hide one that is on.
        run = min(open_runs, key=lambda record: record.state == "lost").id
    with _run_on_its_fleet(run, stack) as (_, fleet, record):
        stopped = stop_run(fleet, record, root=root, grace_s=float(grace_s))
        _say(close(fleet, stopped.status, root=root))
        if not stopped.did:
            _say(f"run {record.id}: there was nothing to stop")


def _follow_to_the_end(fleet: Fleet, record: RunRecord, *, root: Path) -> None:
    """Streams, then tells how it ended; raises the error that carries the exit code."""
    from launcher.follow import follow, write_line
    from launcher.report import close, raise_for
    from launcher.status import ask_status

    follow(fleet, record, root=root, show=write_line)
    status = ask_status(fleet, record, root=root)
    _say(close(fleet, status, root=root))
    raise_for(status)


@contextmanager
def _run_on_its_fleet(run: str | None, stack: str | None) -> Iterator[tuple[Path, Fleet, RunRecord]]:
    """(root, connected fleet, record) of a run: known here, or started from another machine and known to the head."""
    from bootstrap.fleet import Fleet
    from infra.stack import current_stack, project_root, read_cluster
    from launcher.errors import NoRunError
    from launcher.nodes import record_on_head
    from launcher.record import Runs

    root = project_root()
    runs = Runs(root)
    name = stack or current_stack(root)
    try:
        record = runs.load(run) if run else runs.latest(name)
    except NoRunError:
        if run is None:
            raise
        with Fleet(read_cluster(root, name), root=root) as fleet:
            found = record_on_head(fleet, run)
            if found is None:
                raise
            runs.save(found)
            yield root, fleet, found
        return
    with Fleet(read_cluster(root, record.stack), root=root) as fleet:
        yield root, fleet, record


def _bring_logs_here(run: str | None, stack: str | None, *, strict: bool) -> RunRecord:
    """The run's record, its local logs as new as can be. Unless `strict`, what is here must do when no node answers."""
    from bootstrap.errors import BootstrapError
    from infra.errors import ContractError
    from infra.stack import current_stack, project_root
    from launcher.errors import BusyError
    from launcher.follow import fetch
    from launcher.record import Runs
    from launcher.status import same_machines

    try:
        with _run_on_its_fleet(run, stack) as (root, fleet, record):
            if same_machines(fleet.cluster, record):
                fetch(fleet, record, root=root)
            return record
    except (BootstrapError, ContractError, BusyError) as error:
        if strict:
            raise
        root = project_root()
        record = Runs(root).load(run) if run else Runs(root).latest(stack or current_stack(root))
        print(f"(as far as it is on this machine: {error})", file=sys.stderr)
        return record


def _show_local(root: Path, record: RunRecord, node: str | None, rank: int | None) -> None:
    from launcher.follow import read_local, write_line

    for of, line in read_local(root, record, node=node, rank=rank):
        write_line(of, line)


def _as_json(value: object) -> str:
    return json.dumps(value, indent=1)


def _say(text: str) -> None:
    from launcher.follow import write_text

    write_text(text)
