"""For tests of what is left of a stack: fixture `provider`, the only one there is, and what is on disk of a stack."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from infra.gang_record import Record
from infra.providers.base import Deployment
from tests.infra.in_memory_cloud import NOW, FakeProvider, register

FAKE = {"provider": "fake"}


@pytest.fixture
def provider(root: Path, monkeypatch: pytest.MonkeyPatch) -> FakeProvider:
    """The one that the stack file names; there is no other."""
    fake = FakeProvider()
    register(monkeypatch, fake=fake)
    stack_file(root, FAKE)
    return fake


def stack_file(root: Path, cluster: object) -> None:
    file = Deployment(root=root, stack="s").stack_file
    file.parent.mkdir(exist_ok=True)
    file.write_text(yaml.safe_dump({"config": {"trainstack:cluster": cluster}}))


def record(root: Path, *, provider: str) -> Path:
    folder = Deployment(root=root, stack="s").gang_folder
    Record(folder, provider=provider, now=NOW).begin("a")
    return folder
