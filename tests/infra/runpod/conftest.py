"""Fixtures for the provider `runpod`: `cloud`, an empty account a test, and `mine`, a stack of a checkout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.providers.base import Deployment
from infra.providers.runpod import api
from infra.providers.runpod.api import RunPod
from tests.stand_ins.runpod.server import KEY, StandIn


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Whoever connects in this process talks to it, without waiting between calls."""
    monkeypatch.setattr(api, "EVERY_S", 0.0)
    with StandIn() as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(api, "connect", lambda: client_of(server))
        yield server


def client_of(server: StandIn) -> RunPod:
    return RunPod(server.url, KEY, sleep=lambda _: None)


@pytest.fixture
def client(cloud: StandIn) -> RunPod:
    return client_of(cloud)


@pytest.fixture
def mine(root: Path) -> Deployment:
    return Deployment(root=root, stack="runpod")
