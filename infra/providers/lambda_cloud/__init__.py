"""Provider `lambda`: a gang of GPU machines on Lambda's on-demand cloud. (`lambda` is a word of Python's own.)

api.py        the calls that we make, and what their answers must look like
plan.py       from the stack file to machine type and regions     preflight.py  everything that is wrong
machines.py   one machine: launch, find, end                      names.py      names and tags within the limits
access.py     SSH key and firewall rulesets                       resources.py  the Pulumi resources
leftovers.py  what is still there

One region at a time is tried; machines of a region reach one another by private addresses, without InfiniBand.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from infra.providers.lambda_cloud import plan

if TYPE_CHECKING:
    import pulumi

    from infra.cluster import Price
    from infra.cost import Line
    from infra.gang import Machines
    from infra.providers.base import Deployment, Leftover
    from infra.spec import ClusterSpec


class LambdaProvider:
    """The four verbs, and the machines of a gang."""

    keys = plan.KEYS

    def preflight(self, spec: ClusterSpec, deployment: Deployment) -> list[str]:
        from infra.providers.lambda_cloud import preflight

        return preflight.problems(spec, deployment)

    def create(self, spec: ClusterSpec, deployment: Deployment, price: Price) -> pulumi.Output[dict[str, object]]:
        from infra.providers.lambda_cloud import resources

        return resources.declare(spec, deployment, price)

    def price(self, spec: ClusterSpec) -> list[Line]:
        """The disk is in the machine's price; traffic costs nothing (Lambda's price page, from memory)."""
        from infra.cost import Line
        from infra.providers.lambda_cloud import api

        machine = plan.plan(spec, api.connect().offers).machine
        return [
            Line(
                what=f"{spec.nodes} × {machine.name} on demand",
                usd_per_hour=machine.usd_per_hour * spec.nodes,
                source="Lambda's API",
                as_of=datetime.now(UTC),
                outlives_guard=True,  # Lambda bills what is switched off
            )
        ]

    def leftovers(self, deployment: Deployment) -> list[Leftover]:
        from infra.providers.lambda_cloud import api, leftovers

        return leftovers.find(deployment, api.connect())

    def remove(self, leftover: Leftover, deployment: Deployment) -> None:  # noqa: ARG002 - the verb's signature
        from infra.providers.lambda_cloud import api, leftovers

        leftovers.remove(leftover, api.connect())

    def pin(self, wish: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - an image family is all that can be asked for
        return {}

    def machines(
        self,
        deployment: Deployment,
        *,
        wish: Mapping[str, Any],
        places: Mapping[str, Any],
        pinned: Mapping[str, Any],  # noqa: ARG002 - see pin
    ) -> Machines:
        from infra.providers.lambda_cloud import api
        from infra.providers.lambda_cloud.machines import LambdaMachines

        return LambdaMachines(deployment, api.connect(), wish=wish, places=places)


PROVIDER = LambdaProvider()
