"""The infra part's `fab` tasks."""

from __future__ import annotations

from invoke import task

from infra.cli import command
from infra.stack import project_root


@task(
    help={"stack": "stack name (default: the selected one)", "remove": "remove what is found"},
)
@command
def leftovers(context: object, stack: str | None = None, remove: bool = False) -> None:  # noqa: ARG001
    """
    Ask the provider itself what is still there of a stack; exit 6 while anything is.

    Example: fab leftovers --stack local --remove
    """
    from infra import leftovers as found

    root = project_root()
    (found.sweep_all if remove else found.check)(root, found.stack_or_current(root, stack))
