"""Fixtures for the provider `lambda`: `cloud`, an empty account a test, and `mine`, a stack of its own checkout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.providers.base import Deployment
from infra.providers.lambda_cloud import api
from infra.providers.lambda_cloud.api import Lambda
from tests.stand_ins.lambda_cloud.server import KEY, StandIn


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """An empty account; whoever connects in this process talks to it, without waiting between calls."""
    monkeypatch.setattr(api, "REQUEST_EVERY_S", 0.0)
    monkeypatch.setattr(api, "LAUNCH_EVERY_S", 0.0)
    with StandIn() as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(api, "connect", lambda: client_of(server))
        yield server


def client_of(server: StandIn) -> Lambda:
    return Lambda(server.env["LAMBDA_CLOUD_BASE_URL"], KEY, sleep=lambda _: None)


@pytest.fixture
def client(cloud: StandIn) -> Lambda:
    return client_of(cloud)


@pytest.fixture
def mine(root: Path) -> Deployment:
    return Deployment(root=root, stack="lambda")
