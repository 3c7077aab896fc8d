"""What a provider declares for a stack file, by Pulumi's own mocks: no engine, no cloud."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pulumi

from infra.cluster import Cluster, Price
from infra.providers.base import Deployment
from infra.spec import ClusterSpec

PRICE = Price(usd_per_hour=1.0, source="a test", as_of=datetime(2026, 12, 3, tzinfo=UTC))
Made = pulumi.runtime.MockResourceArgs


class Cloud(pulumi.runtime.Mocks):
    """Makes whatever is declared, and keeps it; ids are known at once.

    `machine`: a rank of the gang to what differs from cloud to cloud; `outputs`: what a kind of resource has beside
    its inputs.
    """

    def __init__(
        self, *, machine: Callable[[int], Mapping[str, Any]], outputs: Callable[[str, Made], Mapping[str, Any]]
    ) -> None:
        self.made: list[Made] = []
        self._machine, self._outputs = machine, outputs

    def new_resource(self, args: Made) -> tuple[str | None, dict[Any, Any]]:
        self.made.append(args)
        outputs = {**args.inputs, **self._outputs(_kind(args), args)}
        if args.name == "gang":
            outputs |= {
                "zone": outputs["zones"][0],
                "created_at": "2026-12-03T12:00:00+00:00",
                "expires_at": "2026-12-04T12:00:00+00:00",
                "machines": [
                    {"name": f"node-{rank}", "host_key": f"ssh-ed25519 AAAA{rank}", **self._machine(rank)}
                    for rank in range(int(outputs["nodes"]))
                ],
            }
        return f"id-of-{args.name}", outputs

    def call(self, args: pulumi.runtime.MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        raise AssertionError(args.token)

    def of(self, kind: str) -> dict[str, dict[str, Any]]:
        """By Pulumi's name: the inputs of each resource whose type ends so."""
        return {each.name: dict(each.inputs) for each in self.made if _kind(each) == kind}

    def counts(self) -> Counter[str]:
        return Counter(map(_kind, self.made))

    @property
    def gang(self) -> dict[str, Any]:
        return next(dict(each.inputs) for each in self.made if each.name == "gang")


def declared(
    cloud: Cloud,
    mine: Deployment,
    spec: ClusterSpec,
    declare: Callable[[ClusterSpec, Deployment, Price], pulumi.Output[dict[str, object]]],
) -> Cluster:
    """The Cluster that the program would export."""
    found: list[object] = []
    asyncio.set_event_loop(asyncio.new_event_loop())
    pulumi.runtime.set_mocks(cloud, project="trainstack", stack=mine.stack, preview=False)

    @pulumi.runtime.test  # type: ignore[untyped-decorator]
    def run() -> pulumi.Output[None]:
        return declare(spec, mine, PRICE).apply(found.append)

    run()
    return Cluster.from_json(found[0])


def _kind(made: Made) -> str:
    return made.typ.rpartition(":")[2]
