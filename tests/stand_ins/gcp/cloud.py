"""The whole double as one object: what exists, what a test ordered, what is offered."""

from __future__ import annotations

import itertools
from typing import Any

from tests.stand_ins.gcp import catalogue
from tests.stand_ins.gcp.faults import Faults
from tests.stand_ins.gcp.quotas import Quotas
from tests.stand_ins.gcp.store import Body, Store


class Cloud:
    def __init__(self) -> None:
        self.store = Store()
        self.faults = Faults()
        self.quotas = Quotas()
        self.offerings: dict[str, list[str]] = {}
        self.guest_attributes: dict[str, dict[str, dict[str, str]]] = {}
        """Instance -> namespace -> key -> value."""
        self.external_addresses: list[str] = []
        """The next external addresses to hand out; then made-up ones."""
        self.filestores: dict[str, Body] = {}
        self.buckets: dict[str, Body] = {}
        self.objects: dict[str, list[str]] = {}
        self.iam: dict[str, list[Body]] = {}
        self.accounts: dict[str, Body] = {}
        self.public_key = ""
        self._addresses = itertools.count(1)

    def offers(self, machine_type: str, zone: str) -> bool:
        if machine_type not in catalogue.MACHINE_TYPES or zone not in catalogue.all_zones():
            return False
        return zone in self.offerings.get(machine_type, catalogue.zones_of(machine_type))

    def external_address(self) -> str:
        if self.external_addresses:
            return self.external_addresses.pop(0)
        number = next(self._addresses)
        return f"203.0.{113 + number // 250}.{1 + number % 250}"

    def leftovers(self) -> list[str]:
        """Paths of everything that a program made and that is still there."""
        filestores, accounts = list(self.filestores), list(self.accounts)
        return sorted([*self.store.resources, *filestores, *(f"buckets/{name}" for name in self.buckets), *accounts])

    def summary(self) -> dict[str, Any]:
        return {
            "resources": dict(self.store.resources),
            "filestores": self.filestores,
            "buckets": self.buckets,
            "accounts": self.accounts,
            "hanging": [{"method": h.method, "call": h.call} for h in self.faults.hangs if h.call is not None],
        }
