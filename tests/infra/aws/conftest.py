"""Fixtures for the provider `aws`: nothing that it keeps for one command outlives a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from infra.providers.aws import api, plan
from infra.providers.base import Deployment
from tests.infra.aws.asking import deployment
from tests.stand_ins.aws.fixtures import aws, aws_plugin, aws_server

__all__ = ["aws", "aws_plugin", "aws_server"]


@pytest.fixture(autouse=True, scope="module")
def _clients_of_this_stand_in() -> Iterator[None]:
    """A client knows its endpoint, and each module has a stand-in of its own."""
    forget_clients()
    yield
    forget_clients()


@pytest.fixture(autouse=True)
def _nothing_remembered() -> None:
    for cached in (plan.standard_zones, plan.offering_zones, plan.reservation):
        cached.cache_clear()


@pytest.fixture
def mine(root: object) -> Deployment:
    """A stack of this checkout."""
    return deployment(root)


@pytest.fixture
def fresh_clients() -> Iterator[None]:
    """For tests that change the credentials, which a client reads once."""
    forget_clients()
    yield
    forget_clients()


def forget_clients() -> None:
    api._clients.clear()
    api._session.cache_clear()
