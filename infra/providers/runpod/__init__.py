"""Provider `runpod`: one pod, or an Instant Cluster of several with a network of its own, each serving SSH.

api.py        the calls that we make, and what their answers must look like
plan.py       from the stack file to GPUs and data centers
request.py    the bodies of the creates, and how the containers start
machines.py   pod and cluster: made, found, ended
volume.py     the network volume that the nodes share, as a dynamic resource
preflight.py  everything that is wrong              pricing.py    what it costs
leftovers.py  what is still there                   resources.py  the Pulumi resources
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from infra.providers.runpod import plan

if TYPE_CHECKING:
    import pulumi

    from infra.cluster import Price
    from infra.cost import Line
    from infra.gang import Machines
    from infra.providers.base import Deployment, Leftover
    from infra.spec import ClusterSpec


class RunPodProvider:
    """The four verbs, and the machines of a gang."""

    keys = plan.KEYS

    def preflight(self, spec: ClusterSpec, deployment: Deployment) -> list[str]:
        from infra.providers.runpod import preflight

        return preflight.problems(spec, deployment)

    def create(self, spec: ClusterSpec, deployment: Deployment, price: Price) -> pulumi.Output[dict[str, object]]:
        from infra.providers.runpod import resources

        return resources.declare(spec, deployment, price)

    def price(self, spec: ClusterSpec) -> list[Line]:
        from infra.providers.runpod import api, pricing

        return pricing.lines(spec, api.connect(), now=datetime.now(UTC))

    def leftovers(self, deployment: Deployment) -> list[Leftover]:
        from infra.providers.runpod import api, leftovers

        return leftovers.find(deployment, api.connect())

    def remove(self, leftover: Leftover, deployment: Deployment) -> None:  # noqa: ARG002 - the verb's signature
        from infra.providers.runpod import api, leftovers

        leftovers.remove(leftover, api.connect())

    def pin(self, wish: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - a tag is all that RunPod takes
        return {}

    def machines(
        self,
        deployment: Deployment,
        *,
        wish: Mapping[str, Any],
        places: Mapping[str, Any],
        pinned: Mapping[str, Any],  # noqa: ARG002 - see pin
    ) -> Machines:
        from infra.providers.runpod import api
        from infra.providers.runpod.machines import RunPodMachines

        return RunPodMachines(deployment, api.connect(), wish=wish, places=places)


PROVIDER = RunPodProvider()
