"""The cluster on RunPod as Pulumi resources: a network volume where one is asked for, and the gang."""

from __future__ import annotations

from typing import Any

import pulumi

from infra import gang_cluster, quote
from infra.cluster import Price
from infra.container_start import LOGIN
from infra.providers.base import Deployment
from infra.providers.runpod import plan
from infra.providers.runpod.volume import NetworkVolume
from infra.spec import ClusterSpec


class RunPodCluster(pulumi.ComponentResource):
    """The whole of it. `cluster` resolves only when every node is there."""

    cluster: pulumi.Output[dict[str, object]]

    def __init__(self, name: str, spec: ClusterSpec, deployment: Deployment, price: Price) -> None:
        super().__init__("trainstack:runpod:Cluster", name)
        kind = plan.kind(spec)
        wanted = plan.wish(spec, kind)
        zone = spec.region or plan.ANYWHERE
        is_pod = plan.product(wanted) == "POD"
        pulumi.log.warn(
            "SSH is open to the whole world, by a port that RunPod maps to the node: it has no firewall to ask for; "
            "only the stack's key is let in",
            self,
        )
        if not is_pod:
            pulumi.log.warn(
                "RunPod goes on billing a cluster whose containers have stopped, and lets none of them end it: the "
                "guard stops the work at max_lifetime, and only `make destroy` (or RunPod's console) ends the bill",
                self,
            )
        if not pulumi.runtime.is_dry_run():
            quote.note(deployment, price.usd_per_hour)
        opts = pulumi.ResourceOptions(parent=self)
        place: dict[str, Any] = {}
        if spec.storage is not None:
            volume = NetworkVolume(
                "shared",
                {
                    "project": deployment.project,
                    "stack": deployment.stack,
                    "size_gb": spec.storage.size_gib,
                    "data_center": zone,
                },
                opts=opts,
            )
            place["volume"] = volume.id
        gang = gang_cluster.gang(
            spec,
            deployment,
            price,
            zones=[zone],
            what=f"{kind.name} on demand",
            wish=wanted,
            places={zone: place},
            opts=opts,
        )
        self.cluster = gang_cluster.cluster(
            spec,
            deployment,
            gang,
            region=None,
            machine=kind,
            login=LOGIN,
            interface=None if is_pod else plan.INTERFACE,
            shared_path=plan.SHARED_PATH if spec.storage is not None else None,
        )
        self.register_outputs({"cluster": self.cluster})


def declare(spec: ClusterSpec, deployment: Deployment, price: Price) -> pulumi.Output[dict[str, object]]:
    return RunPodCluster(deployment.stack, spec, deployment, price).cluster
