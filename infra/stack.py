"""Which stack is meant, and what its `pulumi up` gave: the only door from bootstrap/ and launcher/ into infra/."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from infra.cluster import Cluster
from infra.errors import ContractError, EngineError, SpecError

DEFAULT_STACK = "local"
_ENGINE_DEADLINE_S = 120
_STACK_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


def project_root() -> Path:
    """The checkout that this code is part of."""
    return Path(__file__).resolve().parents[1]


def checked_stack_name(name: str) -> str:
    """`name`, if it can name a stack and a folder; raises SpecError."""
    if not _STACK_NAME.fullmatch(name):
        raise SpecError(
            f"stack name {name!r} can't be used: take up to 128 letters, digits, dots, dashes and underscores, "
            "beginning with a letter, a digit or an underscore"
        )
    return name


def current_stack(root: Path) -> str:
    """The stack that a command without --stack means: PULUMI_STACK, else the selected one, else "local".

    Raises EngineError when there is no Pulumi CLI to ask.
    """
    named = os.environ.get("PULUMI_STACK", "")
    if named:
        return checked_stack_name(named)
    answer = _pulumi(root, "stack", "--show-name")
    if answer.returncode == 0 and answer.stdout.strip():
        return checked_stack_name(answer.stdout.strip())
    return DEFAULT_STACK


def read_cluster(root: Path, stack: str) -> Cluster:
    """The Cluster that the last complete `pulumi up` of `stack` made.

    Raises ContractError when there is none (no stack, never up, up half done) or it can't be read.
    """
    stack = checked_stack_name(stack)
    answer = _pulumi(root, "stack", "output", "cluster", "--json", "--stack", stack)
    if answer.returncode != 0:
        raise ContractError(_why_no_cluster(stack, answer.stderr))
    try:
        value = json.loads(answer.stdout)
    except ValueError:
        raise ContractError(
            f"stack {stack}: its output `cluster` isn't JSON ({answer.stdout[:60]!r}): run `pulumi up` again"
        ) from None
    cluster = Cluster.from_json(value)
    if cluster.stack != stack:
        raise ContractError(
            f"stack {stack}: its output `cluster` says it belongs to stack {cluster.stack!r} (was the stack renamed?): "
            "run `pulumi destroy`, then `pulumi up`"
        )
    return cluster


def _pulumi(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A question to the CLI: never waits for a terminal, never touches stdin."""
    from infra.pulumi_engine import environment, find_pulumi

    command = [str(find_pulumi(root)), *arguments, "--non-interactive", "--color", "never"]
    try:
        return subprocess.run(
            command,
            cwd=root,
            env=environment(root),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ENGINE_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EngineError(
            f"`pulumi {' '.join(arguments)}` gave no answer within {_ENGINE_DEADLINE_S} s: is the backend reachable?"
        ) from None


def _why_no_cluster(stack: str, stderr: str) -> str:
    """One sentence for what the CLI said on `stack output`."""
    said = " ".join(stderr.split())
    lower = said.lower()
    if "no stack named" in lower or "no stack selected" in lower:
        return f"there is no stack {stack}: run `pulumi up --stack {stack}` first"
    if "does not have output property" in lower or "no stack outputs" in lower:
        return f"stack {stack} has no cluster (never up, up half done, or destroyed): run `pulumi up --stack {stack}`"
    if "passphrase" in lower:
        return (
            f"stack {stack}: the passphrase doesn't open its state: put the one it was created with into "
            ".trainstack/passphrase (or point PULUMI_CONFIG_PASSPHRASE_FILE at it)"
        )
    return f"stack {stack}: pulumi can't tell its outputs: {said.removeprefix('error: ') or 'it said nothing'}"
