"""Provider `gcp`: a gang of GPU machines on Google Compute Engine.

plan.py        from the stack file to region, machine type, market; all that needs no API
instances.py   the table of machine types (instances.json)
names.py       names, labels and descriptions within Google's limits
api.py         HTTP: credentials, endpoints, retries, operations      faults.py    what Google's errors mean
offers.py      what is where: zones, profiles, reservations, images   quotas.py    needed against free
preflight.py   everything that is wrong, before anything is made      pricing.py   what it costs
network.py, storage.py, resources.py   the Pulumi resources           leftovers.py what is still there
machines.py    one machine: launch, find, end                         body.py      what is asked for with it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from infra.providers.gcp import plan

if TYPE_CHECKING:
    import pulumi

    from infra.cluster import Price
    from infra.cost import Line
    from infra.gang import Machines
    from infra.providers.base import Deployment, Leftover
    from infra.spec import ClusterSpec


class GcpProvider:
    """The four verbs, and the machines of a gang."""

    keys = plan.KEYS

    def preflight(self, spec: ClusterSpec, deployment: Deployment) -> list[str]:
        from infra.providers.gcp import preflight

        return preflight.problems(spec, deployment)

    def create(self, spec: ClusterSpec, deployment: Deployment, price: Price) -> pulumi.Output[dict[str, object]]:
        from infra.providers.gcp import resources

        return resources.declare(spec, deployment, price)

    def price(self, spec: ClusterSpec) -> list[Line]:
        from infra.providers.gcp import pricing

        return pricing.lines(spec)

    def leftovers(self, deployment: Deployment) -> list[Leftover]:
        from infra.providers.gcp import api, leftovers

        return leftovers.find(deployment, api.connect(deployment))

    def remove(self, leftover: Leftover, deployment: Deployment) -> None:
        from infra.providers.gcp import api, leftovers

        leftovers.remove(leftover, deployment, api.connect(deployment))

    def pin(self, wish: Mapping[str, Any]) -> dict[str, Any]:
        from infra.providers.gcp import api, offers

        return offers.pin(api.client_of(str(wish["project"])), wish)

    def machines(
        self, deployment: Deployment, *, wish: Mapping[str, Any], places: Mapping[str, Any], pinned: Mapping[str, Any]
    ) -> Machines:
        from infra.providers.gcp import api
        from infra.providers.gcp.machines import GcpMachines

        client = api.client_of(str(wish["project"]))
        return GcpMachines(deployment, client, wish=wish, places=places, pinned=pinned)


PROVIDER = GcpProvider()
