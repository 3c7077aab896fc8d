"""The cluster on Vast.ai as Pulumi resources: the gang, which is one machine, and nothing beside it."""

from __future__ import annotations

import pulumi

from infra import gang_cluster, quote
from infra.cluster import Price
from infra.container_start import LOGIN
from infra.providers.base import Deployment
from infra.providers.vast import plan
from infra.spec import ClusterSpec


class VastCluster(pulumi.ComponentResource):
    """The whole of it. `cluster` resolves only when the node is there."""

    cluster: pulumi.Output[dict[str, object]]

    def __init__(self, name: str, spec: ClusterSpec, deployment: Deployment, price: Price) -> None:
        super().__init__("trainstack:vast:Cluster", name)
        kind = plan.kind(spec)
        wanted = plan.wish(spec, kind)
        zone = str(wanted["region"])
        pulumi.log.warn(
            "SSH is open to the whole world, by a port of the host's that Vast.ai maps to the node: it has no firewall "
            "to ask for; only the stack's key is let in",
            self,
        )
        if price.usd_per_hour is not None and not pulumi.runtime.is_dry_run():
            quote.note(deployment, price.usd_per_hour)
        gang = gang_cluster.gang(
            spec,
            deployment,
            price,
            zones=[zone],
            what=f"{kind.name} {'by a bid' if spec.market == 'spot' else 'on demand'}",
            wish=wanted,
            places={zone: {}},
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.cluster = gang_cluster.cluster(
            spec, deployment, gang, region=None, machine=kind, login=LOGIN, all_public=True
        )
        self.register_outputs({"cluster": self.cluster})


def declare(spec: ClusterSpec, deployment: Deployment, price: Price) -> pulumi.Output[dict[str, object]]:
    return VastCluster(deployment.stack, spec, deployment, price).cluster
