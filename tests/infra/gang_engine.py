"""What Pulumi's engine does with the gang's resource, over a cloud in memory; with fixtures.

A test module has `checkout`, `cloud`, `engine` and `provider` by importing them, and naming them in `__all__`.
"""

from __future__ import annotations

import copy
import functools
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from infra import gang_resource
from infra.gang import Gang
from infra.gang_resource import GangVerbs
from infra.providers.base import Deployment
from tests.infra.in_memory_cloud import Cloud, FakeProvider, register


class Clock(datetime):
    """The wall clock of gang_resource."""

    at = datetime(2026, 3, 1, 12, tzinfo=UTC)

    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
        assert tz is UTC
        return cls.at


@pytest.fixture
def cloud() -> Cloud:
    return Cloud(room={"a": 8, "b": 8})


@pytest.fixture
def provider(cloud: Cloud) -> FakeProvider:
    return FakeProvider(cloud=cloud)


@pytest.fixture(autouse=True)
def checkout(root: Path, cloud: Cloud, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """`root` is the checkout that runs, `provider` the one there is, and time is the cloud's."""
    register(monkeypatch, fake=provider, other=FakeProvider(cloud=Cloud(room={"a": 8})))
    monkeypatch.setattr(gang_resource, "project_root", lambda: root)
    monkeypatch.setattr(gang_resource, "Machinery", functools.partial(Gang, sleep=cloud.sleep, clock=cloud.clock))
    monkeypatch.setattr(gang_resource, "datetime", Clock)
    monkeypatch.setattr(Clock, "at", datetime(2026, 3, 1, 12, tzinfo=UTC))
    return Deployment(root=root, stack="s")


def later(**time: float) -> datetime:
    Clock.at += timedelta(**time)
    return Clock.at


def inputs(**changes: Any) -> dict[str, Any]:
    return {
        "provider": "fake",
        "project": "trainstack",
        "stack": "s",
        "nodes": 2,
        "zones": ["a", "b"],
        "zones_are_asked_for": False,
        "what": "big-one on demand",
        "lifetime_s": 3600,
        "public_key": "ssh-ed25519 AAAA",
        "price": {"usd_per_hour": 5.0},
        "wish": {"instance": "big-one"},
        "places": {"a": {"subnet": "subnet-a"}, "b": {"subnet": "subnet-b"}},
        **changes,
    }


class Engine:
    """What Pulumi's engine does with the resource: the state is JSON, and an update or a replacement follows a diff."""

    def __init__(self) -> None:
        self.state: dict[str, Any] | None = None

    def up(self, **changes: Any) -> dict[str, Any]:
        news = inputs(**changes)
        if self.state is not None:
            diff = self.diff(**changes)
            if diff.replaces:
                assert diff.delete_before_replace
                self.destroy()
            elif diff.changes:
                self.state = _stored(GangVerbs().update("s-gang", self.state, news).outs)
        if self.state is None:
            self.state = _stored(GangVerbs().create(news).outs)
        return self.state

    def diff(self, **changes: Any) -> Any:
        return GangVerbs().diff("s-gang", copy.deepcopy(self.state or {}), inputs(**changes))

    def refresh(self) -> None:
        assert self.state is not None
        read = GangVerbs().read("s-gang", self.state)
        self.state = _stored(read.outs) if read.id else None

    def destroy(self) -> None:
        assert self.state is not None
        GangVerbs().delete("s-gang", self.state)
        self.state = None

    @property
    def ids(self) -> list[str]:
        return [machine["id"] for machine in (self.state or {"machines": []})["machines"]]


def _stored(outputs: dict[str, Any] | None) -> dict[str, Any]:
    return dict(json.loads(json.dumps(outputs)))


@pytest.fixture
def engine() -> Engine:
    return Engine()
