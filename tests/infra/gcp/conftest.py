"""Fixtures for the provider `gcp`: it is registered, and each test has its own credentials and clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from infra.providers.base import Deployment
from infra.providers.gcp import api, pricing
from tests.infra.gcp.asking import deployment


@pytest.fixture(autouse=True)
def _own_credentials(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A token of the test's, no project, nothing remembered."""
    for name in api.PROJECT_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "test-token")
    caches = (api._credentials, api.client_of, pricing._price_list)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.fixture
def mine(root: object) -> Deployment:
    """A stack of this checkout."""
    return deployment(root)
