"""Provider `vast`: one GPU machine from an offer on Vast.ai's market, as a container that serves SSH.

api.py        the calls that we make, and what their answers must look like
plan.py       from the stack file to a search, and what an offer really costs
request.py    the body of a create, and how the container starts
machines.py   one machine: take, find, end
preflight.py  everything that is wrong              resources.py  the Pulumi resources
leftovers.py  what is still there
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from infra.providers.vast import plan

if TYPE_CHECKING:
    import pulumi

    from infra.cluster import Price
    from infra.cost import Line
    from infra.gang import Machines
    from infra.providers.base import Deployment, Leftover
    from infra.spec import ClusterSpec


class VastProvider:
    """The four verbs, and the machine of a gang."""

    keys = plan.KEYS

    def preflight(self, spec: ClusterSpec, deployment: Deployment) -> list[str]:
        from infra.providers.vast import preflight

        return preflight.problems(spec, deployment)

    def create(self, spec: ClusterSpec, deployment: Deployment, price: Price) -> pulumi.Output[dict[str, object]]:
        from infra.providers.vast import resources

        return resources.declare(spec, deployment, price)

    def price(self, spec: ClusterSpec) -> list[Line]:
        from infra.providers.vast import api, pricing

        return pricing.lines(spec, api.connect(), now=datetime.now(UTC))

    def leftovers(self, deployment: Deployment) -> list[Leftover]:
        from infra.providers.vast import api, leftovers

        return leftovers.find(deployment, api.connect())

    def remove(self, leftover: Leftover, deployment: Deployment) -> None:  # noqa: ARG002 - the verb's signature
        from infra.providers.vast import api, leftovers

        leftovers.remove(leftover, api.connect())

    def pin(self, wish: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - an image's tag is the host's driver's matter
        return {}

    def machines(
        self,
        deployment: Deployment,
        *,
        wish: Mapping[str, Any],
        places: Mapping[str, Any],  # noqa: ARG002 - there is nothing of a place beside its name
        pinned: Mapping[str, Any],  # noqa: ARG002 - see pin
    ) -> Machines:
        from infra.providers.vast import api
        from infra.providers.vast.machines import VastMachines

        return VastMachines(deployment, api.connect(), wish=wish)


PROVIDER = VastProvider()
