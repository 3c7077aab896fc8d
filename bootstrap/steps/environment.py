"""The Python environment of the nodes' lock file, made by uv with hashes required; needs no root."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path

from bootstrap.errors import DiskFull, RemoteError, StepError
from bootstrap.fleet import Shell
from bootstrap.node_side import script
from bootstrap.steps.base import Context, Facts, Verdict
from bootstrap.steps.reach import describe_skew
from infra.cluster import Node

TIMEOUT_S = 3600.0
TELLING_SKEW_S = 60.0
"""A clock this wrong can be why TLS refuses a download."""


class Environment:
    name = "environment"

    def check(self, node: Node, facts: Facts, context: Context) -> Verdict:
        if facts.environment_complete:
            return Verdict()
        state = "half-made" if facts.environment_exists else "not made"
        return Verdict(why=f"environment {context.lock_digest} is {state} on {node.name}")

    def apply(self, shell: Shell, facts: Facts, context: Context) -> None:
        node = shell.node
        uv = facts.uv or _bring_uv(shell, facts)
        argv = ["python3", "-c", script("environment"), context.environment(node), uv, facts.python]
        try:
            shell.run(argv, stdin=context.lock, timeout_s=TIMEOUT_S)
        except RemoteError as error:
            if "No space left on device" in error.stderr:
                raise DiskFull(f"disk full on {node.name}:{context.environment(node)}: make room there") from None
            skew = f" ({describe_skew(facts.clock_skew_s)})" if abs(facts.clock_skew_s) > TELLING_SKEW_S else ""
            raise StepError(f"{node.name}, step environment{skew}: {error.stderr or error}") from None


def _bring_uv(shell: Shell, facts: Facts) -> str:
    """Copies this machine's uv to a node of the same kind and returns its path there."""
    node = shell.node
    ours = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    here = f"{platform.system()} {platform.machine()}"
    if ours is None or facts.system != here:
        raise StepError(
            f"{node.name}, step environment: there is no uv on its PATH, and this machine's ({here}) can't be copied "
            f"to {facts.system}: install uv there (one file, no root needed) at {node.work_dir}/bin/uv"
        )
    path = f"{node.work_dir}/bin/uv"
    shell.put_file(Path(ours).resolve(), path, mode=0o755)
    if shell.run([path, "--version"], check=False).exit_code != 0:
        raise StepError(f"{node.name}, step environment: this machine's uv doesn't run there: install uv at {path}")
    return path
