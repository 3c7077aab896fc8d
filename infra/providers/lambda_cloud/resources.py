"""The cluster on Lambda as Pulumi resources: who may reach it, which is free, then the gang."""

from __future__ import annotations

import pulumi

from infra import gang_cluster
from infra.cluster import Price
from infra.dynamic import public_key
from infra.errors import CapacityError
from infra.gang_record import zone_of
from infra.providers.base import Deployment
from infra.providers.lambda_cloud import api, preflight
from infra.providers.lambda_cloud import plan as planning
from infra.providers.lambda_cloud.access import Access
from infra.spec import ClusterSpec


class LambdaCluster(pulumi.ComponentResource):
    """The whole of it. `cluster` resolves only when every node is there."""

    cluster: pulumi.Output[dict[str, object]]

    def __init__(self, name: str, spec: ClusterSpec, deployment: Deployment, price: Price) -> None:
        super().__init__("trainstack:lambda:Cluster", name)
        client = api.connect()
        choice = planning.plan(spec, client.offers)
        regions = planning.regions_in_order(choice, running_in=zone_of(deployment.gang_folder))
        if not regions:
            raise CapacityError(planning.no_capacity(choice.machine.name))
        networks = gang_cluster.ssh_from(spec)
        gang_cluster.tell_ssh_from(networks, self)
        if opened := preflight.open_to_all(client):
            pulumi.log.warn(
                f"the Lambda account's own firewall rules let the whole world to SSH ({', '.join(opened)}), beside "
                "what ssh_from says: remove them at cloud.lambda.ai/firewall",
                self,
            )
        pulumi.log.warn(
            "Lambda goes on billing machines that are switched off: the guard stops the work at max_lifetime, and "
            "only `make destroy` (or Lambda's dashboard) ends the bill",
            self,
        )
        opts = pulumi.ResourceOptions(parent=self)
        access = Access(
            "access",
            {
                "project": deployment.project,
                "stack": deployment.stack,
                "public_key": public_key(deployment),
                "ssh_from": list(networks),
                "regions": regions,
            },
            opts=opts,
        )
        gang = gang_cluster.gang(
            spec,
            deployment,
            price,
            zones=regions,
            what=f"{choice.machine.name} on demand",
            wish={
                "instance": choice.machine.name,
                "gpus": choice.machine.gpu_count,
                "image": spec.image or "",
                "key": access.key,
            },
            places={region: {"ruleset": access.rulesets[region]} for region in regions},
            opts=opts,
        )
        self.cluster = gang_cluster.cluster(
            spec,
            deployment,
            gang,
            region=None,
            machine=choice.machine,
        )
        self.register_outputs({"cluster": self.cluster})


def declare(spec: ClusterSpec, deployment: Deployment, price: Price) -> pulumi.Output[dict[str, object]]:
    return LambdaCluster(deployment.stack, spec, deployment, price).cluster
