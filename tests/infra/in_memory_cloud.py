"""Doubles of infra/'s two borders to a cloud: machines for the gang, and a provider for all else. Strict and in memory.

Cloud rejects what clouds reject: a machine without room in its zone, a token used for another machine, an unknown zone.
Time is a number that sleeping adds to. A test says which fault is to happen by `before_launch`, `after_launch`, …
"""

from __future__ import annotations

import itertools
import sys
import threading
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from infra import providers
from infra.cluster import Cluster, Endpoint, Node, Price
from infra.errors import CapacityError, ProviderError
from infra.first_boot import FirstBoot
from infra.gang import Machine, Order
from infra.providers.base import Deployment, Leftover

BOOT_DEADLINE_S = 60.0
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Killed(BaseException):
    """What ends `pulumi up` in the middle of a call: nothing that it would have done comes."""


@dataclass
class _Made:
    machine: Machine
    order: Order
    unseen: int
    """Looks that it is still missing from."""


@dataclass
class Cloud:
    """One account; implements infra.gang.Machines."""

    room: dict[str, int]
    """Zone to how many machines it has room for."""
    unseen: int = 0
    """How many looks a new machine is missing from."""
    boots: bool = True
    """False: a machine stays "starting"."""
    boot_deadline_s: float = BOOT_DEADLINE_S
    launches: list[Order] = field(default_factory=list)
    """Every call, in order."""
    before_launch: Callable[[Order], None] = lambda _order: None
    """May raise: the call fails and nothing was made."""
    after_launch: Callable[[Order], None] = lambda _order: None
    """May raise: the machine was made, and the caller isn't told."""
    before_end: Callable[[Sequence[str]], None] = lambda _ids: None
    """May raise."""
    end_lies: bool = False
    """`end` returns and nothing ends."""
    dies: dict[str, ProviderError | None] = field(default_factory=dict)
    """Node to why its machine ends by itself while it starts; None: the provider doesn't say."""
    time: float = 0.0
    _made: dict[str, _Made] = field(default_factory=dict)
    _by_token: dict[str, str] = field(default_factory=dict)
    _numbers: Iterable[int] = field(default_factory=lambda: itertools.count(1))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # infra.gang.Machines

    def launch(self, order: Order) -> str:
        with self._lock:
            self.launches.append(order)
            self.before_launch(order)
            id_ = self._make(order)
            self.after_launch(order)
            return id_

    def find(self, ids: Iterable[str] = ()) -> list[Machine]:
        list(ids)
        with self._lock:
            told = []
            for made in self._made.values():
                if made.unseen > 0:
                    made.unseen -= 1
                else:
                    told.append(made.machine)
                    self._go_on(made)
            return told

    def end(self, ids: Sequence[str]) -> None:
        self.before_end(ids)
        if self.end_lies:
            return
        for id_ in ids:
            if id_ in self._made:
                self.set(id_, state="ended")

    # What a test asks and does

    def clock(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    @property
    def billing(self) -> list[Machine]:
        """Whatever the account pays for now, seen or not."""
        return [made.machine for made in self._made.values() if made.machine.state != "ended"]

    @property
    def names(self) -> list[str]:
        """Of all that bill."""
        return sorted((machine.name for machine in self.billing), key=lambda name: int(name.rpartition("-")[2]))

    def of(self, name: str) -> Machine:
        """The one machine of that name that bills."""
        (machine,) = [each for each in self.billing if each.name == name]
        return machine

    def boot(self, id_: str) -> FirstBoot:
        return self._made[id_].order.boot

    def set(self, id_: str, **changes: Any) -> None:
        self._made[id_].machine = replace(self._made[id_].machine, **changes)

    def end_by_hand(self, name: str) -> str:
        id_ = self.of(name).id
        self.set(id_, state="ended")
        return id_

    def _make(self, order: Order) -> str:
        if order.zone not in self.room:
            raise ProviderError(f"there is no zone {order.zone}")
        if order.token in self._by_token:
            made = self._made[self._by_token[order.token]]
            if replace(order, token="") != replace(made.order, token=""):
                raise ProviderError(f"token of {made.order.name} in {made.order.zone} was used for another request")
            return made.machine.id
        if sum(machine.zone == order.zone for machine in self.billing) >= self.room[order.zone]:
            raise CapacityError(f"no room in {order.zone}")
        id_ = f"i-{next(iter(self._numbers))}"
        machine = Machine(id=id_, name=order.name, zone=order.zone, state="starting", facts={"interface": f"if-{id_}"})
        self._made[id_] = _Made(machine, order, self.unseen)
        self._by_token[order.token] = id_
        return id_

    def _go_on(self, made: _Made) -> None:
        """What was just told as starting runs at the next look, or has ended by then."""
        machine = made.machine
        if machine.state != "starting" or not self.boots:
            return
        if machine.name in self.dies:
            made.machine = replace(machine, state="ended", fault=self.dies[machine.name])
        else:
            number = int(machine.id.removeprefix("i-"))
            made.machine = replace(machine, state="running", private_address=f"10.0.{number // 256}.{number % 256}")


@dataclass
class WholeCloud(Cloud):
    """An account whose gangs are made by one call; implements infra.gang.LaunchesWhole too."""

    def launch(self, order: Order) -> str:
        raise AssertionError(f"{order.name} was asked for alone")

    def launch_whole(self, orders: Sequence[Order]) -> dict[str, str]:
        with self._lock:
            self.launches += orders
            for order in orders:
                self.before_launch(order)
            if (
                sum(machine.zone == orders[0].zone for machine in self.billing) + len(orders)
                > self.room[orders[0].zone]
            ):
                raise CapacityError(f"no room in {orders[0].zone}")
            ids = {order.name: self._make(order) for order in orders}
            for order in orders:
                self.after_launch(order)
            return ids


def refusing(error: ProviderError, *, names: Sequence[str] = (), zones: Sequence[str] = ()) -> Callable[[Order], None]:
    """For `before_launch`: `error` for these nodes and zones, none given meaning all."""

    def check(order: Order) -> None:
        if (not names or order.name in names) and (not zones or order.zone in zones):
            raise error

    return check


def refusing_each(errors: Mapping[str, ProviderError]) -> Callable[[Order], None]:
    """For `before_launch`: an error by node."""

    def check(order: Order) -> None:
        if order.name in errors:
            raise errors[order.name]

    return check


def failing_to_end(said: str) -> Callable[[Sequence[str]], None]:
    """For `before_end`."""

    def before_end(ids: Sequence[str]) -> None:
        if ids:
            raise ProviderError(said)

    return before_end


def stopping(cloud: Cloud, name: str) -> Callable[[float], None]:
    """For a gang's `sleep`: node `name` is switched off meanwhile."""

    def sleep(seconds: float) -> None:
        cloud.sleep(seconds)
        for machine in cloud.billing:
            if machine.name == name:
                cloud.set(machine.id, state="stopped")

    return sleep


def killed_at(name: str) -> Callable[[Order], None]:
    """For `before_launch` and `after_launch`."""

    def check(order: Order) -> None:
        if order.name == name:
            raise Killed

    return check


@dataclass
class FakeProvider:
    """A provider whose things are in a list; register it under infra.providers.MODULES by a module's name."""

    cloud: Cloud | None = None
    things: list[Leftover] = field(default_factory=list)
    stubborn: set[str] = field(default_factory=set)
    """Ids whose removal fails."""
    refuses: ProviderError | None = None
    """What `leftovers` raises."""
    uncovers: dict[str, Leftover] = field(default_factory=dict)
    """What appears once the thing with that id has gone."""
    removed: list[str] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    """The arguments that machines were asked for with."""
    keys: tuple[str, ...] = ("provider", "nodes")
    before_remove: Callable[[Leftover], None] = lambda _leftover: None
    image: str = "image-1"
    """The newest one now."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def leftovers(self, _deployment: Deployment) -> list[Leftover]:
        if self.refuses is not None:
            raise self.refuses
        return list(self.things)

    def remove(self, leftover: Leftover, _deployment: Deployment) -> None:
        self.before_remove(leftover)
        with self._lock:
            if leftover.id in self.stubborn:
                raise ProviderError(f"{leftover.kind} {leftover.id} is in use")
            self.things = [each for each in self.things if each.id != leftover.id]
            self.removed.append(leftover.id)
            if leftover.id in self.uncovers:
                self.things.append(self.uncovers.pop(leftover.id))

    def pin(self, _wish: Mapping[str, Any]) -> dict[str, Any]:
        return {"image": self.image}

    def machines(
        self, deployment: Deployment, *, wish: Mapping[str, Any], places: Mapping[str, Any], pinned: Mapping[str, Any]
    ) -> Cloud:
        assert self.cloud is not None
        self.asked.append({"deployment": deployment, "wish": wish, "places": places, "pinned": pinned})
        return self.cloud


def instance(id_: str, *, is_ours: bool = True) -> Leftover:
    return Leftover(kind="instance", id=id_, detail="node-0", usd_per_hour=2.5, is_machine=True, is_ours=is_ours)


def thing(kind: str, id_: str, *, is_ours: bool = True) -> Leftover:
    return Leftover(kind=kind, id=id_, detail="", usd_per_hour=None, is_ours=is_ours)


def register(monkeypatch: pytest.MonkeyPatch, **fakes: FakeProvider) -> None:
    """From now on these are all the providers there are, by name."""
    modules = {}
    for name, fake in fakes.items():
        modules[name] = f"fake_provider_{name}"
        module = types.ModuleType(modules[name])
        module.PROVIDER = fake  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(providers, "MODULES", modules)


def cluster_of_one() -> Cluster:
    """Of stack s at $5 per hour; its hour is over."""
    node = Node(
        name="node-0",
        provider_id="i-1",
        rank=0,
        public=Endpoint(host="203.0.113.7"),
        private=Endpoint(host="10.0.0.1"),
        user="trainstack",
        host_key="ssh-ed25519 AAAA",
        work_dir="/home/trainstack",
        processes=8,
        cpu_threads=8,
    )
    return Cluster(
        version=1,
        project="trainstack",
        stack="s",
        provider="fake",
        region="r",
        zone="a",
        created_at=NOW.replace(year=2025),
        expires_at=NOW.replace(year=2025, hour=13),
        price=Price(usd_per_hour=5.0, source="catalogue", as_of=NOW),
        shared_storage=None,
        nodes=(node,),
    )
