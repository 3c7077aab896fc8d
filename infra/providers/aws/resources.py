"""The AWS cluster as Pulumi resources: what is free first, then the gang, then what bills beside it.

In this order a gang that can't be had leaves nothing on the bill, and NAT gateway, addresses and shared storage go to
the zone that the gang went to.
"""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra import gang_cluster
from infra.cluster import Price
from infra.gang_resource import Gang
from infra.providers.aws import api, network, storage
from infra.providers.aws import plan as planning
from infra.providers.base import Deployment
from infra.spec import ClusterSpec


class AwsCluster(pulumi.ComponentResource):
    """The whole of it. `cluster` resolves only when every node is there."""

    cluster: pulumi.Output[dict[str, object]]

    def __init__(self, name: str, spec: ClusterSpec, deployment: Deployment, price: Price) -> None:
        super().__init__("trainstack:aws:Cluster", name)
        choice = planning.plan(spec)
        zones = planning.zones_in_order(spec, choice)
        provider = aws.Provider(
            "aws",
            region=choice.region,
            default_tags={"tags": {api.IDENTITY_TAG: deployment.identity, api.OWNER_TAG: deployment.owner}},
            opts=pulumi.ResourceOptions(parent=self),
        )
        opts = pulumi.ResourceOptions(parent=self, provider=provider)
        ssh_from = gang_cluster.ssh_from(spec)
        gang_cluster.tell_ssh_from(ssh_from, self)
        net = network.declare(
            # All of the region's, and not only those that offer the machine today: subnets are free, and taking one
            # away from under a gang isn't possible.
            zones=sorted(choice.zones or {*planning.standard_zones(choice.region), *zones}),
            region=choice.region,
            digest=deployment.digest,
            ssh_from=ssh_from,
            opts=opts,
        )
        if spec.storage is not None:
            gang_cluster.note_storage(deployment)
        bucket = storage.bucket(deployment, opts) if spec.storage and spec.storage.kind == "bucket" else None
        gang = gang_cluster.gang(
            spec,
            deployment,
            price,
            zones=zones,
            what=f"{choice.instance.name} ({'reserved' if spec.reservation else spec.market})",
            wish={
                "region": choice.region,
                "instance": choice.instance.name,
                "market": spec.market,
                "image": spec.image or "deep-learning",
                "disk_gib": spec.disk_gib or planning.DISK_GIB,
                "reservation": spec.reservation or "",
                "reservation_kind": _reservation_kind(spec, choice.region),
                "security_group": net.members.id,
                "instance_profile": bucket.instance_profile if bucket else "",
            },
            places={
                zone: {
                    "public_subnet": net.public[zone].id,
                    "private_subnet": net.private[zone].id,
                    # A block's machines are near one another already, and refuse a placement group.
                    "placement_group": "" if spec.reservation else net.placement_groups[zone].name,
                }
                for zone in zones
            },
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(net.ready)),
        )
        after = pulumi.ResourceOptions(parent=self, provider=provider, depends_on=[gang])
        address = _head_address(gang, after)
        if spec.egress == "nat" and spec.nodes > 1:
            _nat(gang, net, after)
        shared = storage.declare(spec, gang=gang, net=net, opts=after) or (bucket.address if bucket else None)
        self.cluster = gang_cluster.cluster(
            spec,
            deployment,
            gang,
            region=choice.region,
            machine=choice.instance,
            head_address=address,
            storage=shared,
        )
        self.register_outputs({"cluster": self.cluster})


def declare(spec: ClusterSpec, deployment: Deployment, price: Price) -> pulumi.Output[dict[str, object]]:
    return AwsCluster(deployment.stack, spec, deployment, price).cluster


def _reservation_kind(spec: ClusterSpec, region: str) -> str:
    if spec.reservation is None:
        return ""
    return str(planning.reservation(region, spec.reservation).get("ReservationType", "default"))


def _head_address(gang: Gang, after: pulumi.ResourceOptions) -> pulumi.Output[str]:
    """A machine with several interfaces gets no public address by itself, hence an Elastic IP on its first one."""
    address = aws.ec2.Eip("head", domain="vpc", opts=after)
    aws.ec2.EipAssociation(
        "head",
        allocation_id=address.allocation_id,
        network_interface_id=gang.machines.apply(lambda machines: machines[0]["facts"]["interface"]),
        allow_reassociation=True,
        opts=after,
    )
    return address.public_ip


def _nat(gang: Gang, net: network.Network, after: pulumi.ResourceOptions) -> None:
    """In the gang's own zone: through another one each GB would cost twice."""
    address = aws.ec2.Eip("nat", domain="vpc", opts=after)
    subnets = pulumi.Output.all(**{zone: subnet.id for zone, subnet in net.public.items()})
    gateway = aws.ec2.NatGateway(
        "nat",
        allocation_id=address.allocation_id,
        subnet_id=pulumi.Output.all(zone=gang.zone, subnets=subnets).apply(lambda it: it["subnets"][it["zone"]]),
        opts=after,
    )
    aws.ec2.Route(
        "private-out",
        route_table_id=net.private_routes.id,
        destination_cidr_block="0.0.0.0/0",
        nat_gateway_id=gateway.id,
        opts=after,
    )
