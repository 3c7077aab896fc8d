"""Fixtures for the provider `vast`: `cloud`, an empty account and market a test, and `mine`, a stack of a checkout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.providers.base import Deployment
from infra.providers.vast import api
from infra.providers.vast.api import Vast
from tests.stand_ins.vast.server import KEY, StandIn


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Whoever connects in this process talks to it, without waiting between calls."""
    for name in ("LIST_EVERY_S", "CREATE_EVERY_S", "DESTROY_EVERY_S", "SEARCH_EVERY_S"):
        monkeypatch.setattr(api, name, 0.0)
    with StandIn() as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(api, "connect", lambda: client_of(server))
        yield server


def client_of(server: StandIn) -> Vast:
    return Vast(server.url, KEY, sleep=lambda _: None)


@pytest.fixture
def client(cloud: StandIn) -> Vast:
    return client_of(cloud)


@pytest.fixture
def mine(root: Path) -> Deployment:
    return Deployment(root=root, stack="vast")
