"""`fab bootstrap` and `fab ssh`: they read the stack, call what does the work, and print."""

from __future__ import annotations

import os
import threading

from invoke.context import Context
from invoke.tasks import task

from bootstrap.arguments import after_dashes
from bootstrap.errors import BootstrapError, UsageError
from bootstrap.fleet import Fleet, Outcomes
from bootstrap.hosts import ssh_command
from bootstrap.prepare import Readiness, bootstrap_each
from infra.cli import command
from infra.cluster import Cluster
from infra.stack import current_stack, project_root, read_cluster

_STACK_HELP = "the Pulumi stack (default: the selected one)"


@task(
    help={
        "only": "steps to look at, joined by commas: reach, environment, code (default: all)",
        "dry-run": "say what would be done, change nothing",
        "stack": _STACK_HELP,
    }
)
@command
def bootstrap(context: Context, only: str = "", dry_run: bool = False, stack: str = "") -> None:  # noqa: ARG001
    """
    Makes every node able to train; quick and harmless when it is already.

    Example: fab bootstrap --dry-run
    """
    root = project_root()
    cluster = read_cluster(root, stack or current_stack(root))
    lock = threading.Lock()

    def report(line: str) -> None:
        with lock:
            print(line, flush=True)

    steps = [name.strip() for name in only.split(",")] if only else None
    with Fleet(cluster, root=root) as fleet:
        outcomes = bootstrap_each(fleet, root=root, only=steps, dry_run=dry_run, report=report)
    print(table(cluster, outcomes), flush=True)
    outcomes.require("fab bootstrap")


@task(help={"node": "the node's name (default: the head)", "stack": _STACK_HELP})
@command
def ssh(context: Context, node: str = "", stack: str = "") -> None:  # noqa: ARG001
    """
    Opens a shell on a node, or runs there what stands after `--`.

    Only the stack's key and host keys are used; your ~/.ssh and agent are left out. A command reads from the terminal;
    where there is none its stdin is empty, so that a `while read` loop around it keeps its lines.

    Example: fab ssh --node node-1 -- df -h
    """
    root = project_root()
    cluster = read_cluster(root, stack or current_stack(root))
    where = cluster.node(node) if node else cluster.head
    command = after_dashes()
    words = ssh_command(cluster, where, command, root=root)
    if command and not os.isatty(0):
        words.insert(1, "-n")
    try:
        # ssh takes this process's place: so its exit code, its signals and its terminal are ssh's own.
        os.execvp(words[0], words)  # noqa: S606
    except FileNotFoundError:
        raise UsageError("fab ssh: there is no `ssh` program on PATH: install OpenSSH's client") from None


def table(cluster: Cluster, outcomes: Outcomes[Readiness]) -> str:
    """A line a node: its steps, its notes, or its error's first line."""
    width = max(len(node.name) for node in cluster.nodes)
    lines = []
    for node in cluster.nodes:
        error = outcomes.errors.get(node.name)
        said = _failure(error) if error else _success(outcomes.results[node.name])
        lines.append(f"{node.name:<{width}}  {said}")
    return "\n".join(lines)


def _success(readiness: Readiness) -> str:
    steps = "  ".join(f"{name}: {state}" for name, state in readiness.steps.items())
    return "  ".join([steps, *(f"({note})" for note in readiness.notes)])


def _failure(error: BootstrapError) -> str:
    return "FAILED: " + str(error).splitlines()[0]
