"""Fixtures for infra/: a checkout in an awkward path, and local nodes that are ended even when a test fails."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.providers.local.isolation import Mode
from tests.infra.local_stacks import LocalStack


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout whose path has blanks, a non-ASCII letter and a percent sign."""
    path = tmp_path / "mein Prüf stand 5%"
    path.mkdir()
    return path


@pytest.fixture
def local_stack(root: Path) -> Iterator[Callable[..., LocalStack]]:
    """Makes local stacks in `root`; whatever they hold at the end of the test is removed."""
    made: list[LocalStack] = []

    def make(mode: Mode, **options: int | bool) -> LocalStack:
        made.append(LocalStack(root, mode, **options))
        return made[-1]

    yield make
    for stack in made:
        stack.remove()


@pytest.fixture
def hard_link_source() -> Path:
    """A file on the filesystem of the host's uv cache."""
    uv = Path(sys.prefix) / "bin" / "uv"
    done = subprocess.run([str(uv), "cache", "dir"], capture_output=True, text=True, check=False)
    return Path(done.stdout.strip()) / "CACHEDIR.TAG"


@pytest.fixture(autouse=True)
def _traceback_limit_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """infra.dynamic takes the traceback from refusals for the rest of its process, which in a test is ours."""
    monkeypatch.setattr(sys, "tracebacklimit", 1000, raising=False)
