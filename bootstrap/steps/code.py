"""The code that the ranks run, in a folder named by its content: sent once, never changed, shared by runs.

It goes from this machine to each node. Sending it to the head only, which then fans out, pays off for many nodes behind
a slow line; the folder's name and content would be the same.
"""

from __future__ import annotations

from bootstrap.errors import DiskFull, RemoteError, StepError
from bootstrap.fleet import Shell
from bootstrap.node_side import script
from bootstrap.steps.base import Context, Facts, Verdict
from infra.cluster import Node

TIMEOUT_S = 1800.0
_DISK_FULL = 28


class Code:
    name = "code"

    def check(self, node: Node, facts: Facts, context: Context) -> Verdict:
        if facts.code_complete:
            return Verdict()
        return Verdict(why=f"code {context.code.digest} isn't on {node.name}")

    def apply(self, shell: Shell, facts: Facts, context: Context) -> None:  # noqa: ARG002
        send_code(shell, context)


def send_code(shell: Shell, context: Context) -> str:
    """Sends the code tree to one node and returns its folder there. Raises StepError, DiskFull."""
    path = context.code_path(shell.node)
    try:
        argv = ["python3", "-c", script("unpack"), path, context.code.digest]
        shell.run(argv, stdin=context.code.archive, timeout_s=TIMEOUT_S)
    except RemoteError as error:
        if error.exit_code == _DISK_FULL:
            raise DiskFull(
                f"disk full on {shell.node.name}:{path}: make room there; nothing incomplete was left"
            ) from None
        raise StepError(f"{shell.node.name}, step code, at {path}: {error.stderr or error}") from None
    return path
