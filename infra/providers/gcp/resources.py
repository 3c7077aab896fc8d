"""The GCP cluster as Pulumi resources: what is free first, then the gang, then what bills beside it.

In this order a gang that can't be had leaves nothing on the bill, and Filestore goes to the zone that the gang went to.
"""

from __future__ import annotations

import pulumi
import pulumi_gcp as gcp

from infra import gang_cluster
from infra.cluster import Price
from infra.dynamic import public_key
from infra.providers.base import Deployment
from infra.providers.gcp import api, names, network, offers, storage
from infra.providers.gcp import plan as planning
from infra.spec import ClusterSpec

FLEX_START_WAIT_S = 7200
"""The longest that Google queues a flex-start machine."""


class GcpCluster(pulumi.ComponentResource):
    """The whole of it. `cluster` resolves only when every node is there."""

    cluster: pulumi.Output[dict[str, object]]

    def __init__(self, name: str, spec: ClusterSpec, deployment: Deployment, price: Price) -> None:
        super().__init__("trainstack:gcp:Cluster", name)
        choice = planning.plan(spec)
        client = api.connect(deployment)
        provider = gcp.Provider(
            "gcp",
            project=client.project,
            region=choice.region,
            opts=pulumi.ResourceOptions(parent=self),
        )
        opts = pulumi.ResourceOptions(parent=self, provider=provider)
        ssh_from = gang_cluster.ssh_from(spec)
        gang_cluster.tell_ssh_from(ssh_from, self)
        net = network.declare(
            deployment,
            choice.machine,
            project=client.project,
            region=choice.region,
            roce_zones=offers.roce_zones(client, choice) if choice.machine.networking == "rdma" else (),
            ssh_from=ssh_from,
            opts=opts,
        )
        placement = _placement_policy(deployment, choice.region, opts)
        bucket = None
        if spec.storage is not None:
            gang_cluster.note_storage(deployment)
        if spec.storage is not None and spec.storage.kind == "bucket":
            bucket = storage.bucket(deployment, region=choice.region, opts=opts)
        zones = offers.zones_in_order(client, spec, choice)
        gang = gang_cluster.gang(
            spec,
            deployment,
            price,
            zones=zones,
            what=choice.what,
            wish={
                "project": client.project,
                "machine": choice.machine.name,
                "provisioning": choice.provisioning,
                "wait_s": FLEX_START_WAIT_S if choice.provisioning == "FLEX_START" else 0,
                "reservation": spec.reservation or "",
                "image": spec.image or planning.IMAGE,
                "disk_gib": spec.disk_gib or planning.DISK_GIB,
                "disk_type": choice.machine.boot_disk_type,
                "interfaces": list(net.interfaces),
                "placement": placement.id,
                "service_account": bucket.service_account if bucket else "",
                "public_key": public_key(deployment),
            },
            places={zone: {"interfaces": list(net.places.get(zone, ()))} for zone in {*zones, *net.places}},
            opts=pulumi.ResourceOptions(parent=self, depends_on=[*net.ready, *([bucket.ready] if bucket else [])]),
        )
        after = pulumi.ResourceOptions(parent=self, provider=provider, depends_on=[gang])
        if spec.egress == "nat" and spec.nodes > 1:
            _nat(deployment, net, choice.region, after)
        shared = storage.declare(spec, deployment, gang=gang, net=net, opts=after)
        shared = shared or (bucket.address if bucket else None)
        self.cluster = gang_cluster.cluster(
            spec,
            deployment,
            gang,
            region=choice.region,
            machine=choice.machine,
            # Its machine's own, so that it goes when the machine does.
            storage=shared,
        )
        self.register_outputs({"cluster": self.cluster})


def declare(spec: ClusterSpec, deployment: Deployment, price: Price) -> pulumi.Output[dict[str, object]]:
    return GcpCluster(deployment.stack, spec, deployment, price).cluster


def _placement_policy(deployment: Deployment, region: str, opts: pulumi.ResourceOptions) -> gcp.compute.ResourcePolicy:
    """Near one another. Free, and made for one node too: it can't be given to a machine that is there already.

    Without vm_count, which would ask for all of them in one call.
    """
    return gcp.compute.ResourcePolicy(
        "near",
        name=names.name(deployment, "near"),
        description=names.description(deployment),
        region=region,
        group_placement_policy=gcp.compute.ResourcePolicyGroupPlacementPolicyArgs(collocation="COLLOCATED"),
        opts=opts,
    )


def _nat(deployment: Deployment, net: network.Networks, region: str, after: pulumi.ResourceOptions) -> None:
    """The way out for nodes without a public address: from the main network only."""
    router = gcp.compute.Router(
        "out",
        name=names.name(deployment, "out"),
        description=names.description(deployment),
        network=net.main.id,
        region=region,
        opts=after,
    )
    gcp.compute.RouterNat(
        "out",
        name=names.name(deployment, "out"),
        router=router.name,
        region=region,
        nat_ip_allocate_option="AUTO_ONLY",
        source_subnetwork_ip_ranges_to_nat="ALL_SUBNETWORKS_ALL_IP_RANGES",  # the main network has the one
        # 64 ports a machine, as it would be without, are used up by one download of many small files.
        enable_dynamic_port_allocation=True,
        min_ports_per_vm=256,
        max_ports_per_vm=8192,
        opts=after,
    )
