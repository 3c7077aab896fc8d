"""What a step is, what it gets to know, and what it says.

A step looks at facts that were gathered in one round trip (so `check` is pure and a second bootstrap is fast), and
changes the node in `apply`. Afterwards the facts are gathered and checked again: a step can't claim success.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import TypeAdapter, ValidationError

from bootstrap.code_tree import SourceTree
from bootstrap.errors import RemoteError, StepError, UsageError
from bootstrap.fleet import Shell
from bootstrap.node_side import script
from infra.cluster import Node

LOCK = Path("requirements") / "node.lock"


@dataclass(frozen=True, kw_only=True)
class Context:
    """What the nodes shall have."""

    lock: bytes
    """The pinned requirements of a node, with hashes."""
    code: SourceTree

    @property
    def lock_digest(self) -> str:
        return hashlib.sha256(self.lock).hexdigest()[:16]

    def environment(self, node: Node) -> str:
        return f"{node.work_dir}/envs/{self.lock_digest}"

    def code_path(self, node: Node) -> str:
        return f"{node.work_dir}/code/{self.code.digest}"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a node has (node_side/facts.py), and how far its clock is ahead of ours."""

    now: float
    python: str
    python_version: tuple[int, int]
    system: str
    free_gib: float
    writable_parent: str | None
    environment_exists: bool
    environment_complete: bool
    code_complete: bool
    uv: str | None
    clock_skew_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`why` isn't None: what the step would have to change. `note`: what is worth knowing either way."""

    why: str | None = None
    note: str = ""

    @property
    def fit(self) -> bool:
        return self.why is None


class Step(Protocol):
    """One thing that a node must have. `apply` may be repeated, and may be cut anywhere."""

    @property
    def name(self) -> str: ...

    def check(self, node: Node, facts: Facts, context: Context) -> Verdict: ...

    def apply(self, shell: Shell, facts: Facts, context: Context) -> None:
        """Raises a BootstrapError that names node and step."""
        ...


_FACTS: TypeAdapter[Facts] = TypeAdapter(Facts)


def read_lock(root: Path) -> bytes:
    try:
        return (root / LOCK).read_bytes()
    except OSError as error:
        raise UsageError(f"{root / LOCK} can't be read ({error.strerror}): it says what a node needs") from None


def gather(shell: Shell, context: Context) -> Facts:
    """The facts about one node. Raises StepError when it has no Python at all."""
    node = shell.node
    argv = ["python3", "-c", script("facts"), node.work_dir, context.environment(node), context.code_path(node)]
    before = time.time()
    try:
        done = shell.run(argv, timeout_s=60)
    except RemoteError as error:
        if error.exit_code != 127:
            raise
        raise StepError(
            f"{node.name}, step reach: there is no python3 there: choose an image with Python 3.11+"
        ) from None
    middle = (before + time.time()) / 2
    try:
        facts = json.loads(done.stdout)
        return _FACTS.validate_python(facts | {"clock_skew_s": facts["now"] - middle})
    except (ValueError, TypeError, KeyError, ValidationError):
        said = done.stdout[-200:]
        raise StepError(
            f"{node.name}, step reach: its answer can't be read: {said!r}: does its login print text?"
        ) from None
