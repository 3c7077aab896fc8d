"""The GCP cluster as Pulumi resources: what is free first, then the gang, then what bills beside it.

In this order a gang that can't be had leaves nothing on the bill, and Filestore goes to the zone that the gang went to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pulumi
import pulumi_gcp as gcp

from infra import own_address
from infra.cluster import VERSION, Cluster, Endpoint, Node, Price, SharedStorage
from infra.dynamic import public_key
from infra.errors import ProviderError
from infra.gang_resource import Gang
from infra.providers.base import Deployment
from infra.providers.gcp import api, names, network, offers, storage
from infra.providers.gcp import plan as planning
from infra.providers.gcp.instances import InstanceType
from infra.spec import ClusterSpec
from infra.user_data import USER, WORK_DIR

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
        net = network.declare(
            deployment,
            choice.machine,
            project=client.project,
            region=choice.region,
            roce_zones=offers.roce_zones(client, choice) if choice.machine.networking == "rdma" else (),
            ssh_from=_ssh_from(spec, self),
            opts=opts,
        )
        placement = _placement_policy(deployment, choice.region, opts)
        bucket = None
        if spec.storage is not None:
            storage.note(deployment)
        if spec.storage is not None and spec.storage.kind == "bucket":
            bucket = storage.bucket(deployment, region=choice.region, opts=opts)
        zones = offers.zones_in_order(client, spec, choice)
        gang = Gang(
            "gang",
            {
                "provider": "gcp",
                "project": deployment.project,
                "stack": deployment.stack,
                "nodes": spec.nodes,
                "zones": zones,
                "zones_are_asked_for": choice.zones is not None,
                "what": choice.what,
                "lifetime_s": spec.max_lifetime_s,
                "public_key": public_key(deployment),
                "price": {
                    "usd_per_hour": price.usd_per_hour,
                    "source": price.source,
                    "as_of": price.as_of.isoformat(),
                },
                "wish": {
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
                "places": {zone: {"interfaces": list(net.places.get(zone, ()))} for zone in {*zones, *net.places}},
            },
            opts=pulumi.ResourceOptions(parent=self, depends_on=[*net.ready, *([bucket.ready] if bucket else [])]),
        )
        after = pulumi.ResourceOptions(parent=self, provider=provider, depends_on=[gang])
        if spec.egress == "nat" and spec.nodes > 1:
            _nat(deployment, net, choice.region, after)
        shared = storage.declare(spec, deployment, gang=gang, net=net, opts=after)
        shared = shared or (bucket.address if bucket else None)
        self.cluster = pulumi.Output.all(
            zone=gang.zone,
            created_at=gang.created_at,
            expires_at=gang.expires_at,
            machines=gang.machines,
            price=gang.price,
            storage=shared,
        ).apply(lambda known: _cluster(spec, deployment, choice, known).to_json())
        self.register_outputs({"cluster": self.cluster})


def declare(spec: ClusterSpec, deployment: Deployment, price: Price) -> pulumi.Output[dict[str, object]]:
    return GcpCluster(deployment.stack, spec, deployment, price).cluster


def _ssh_from(spec: ClusterSpec, shown_at: pulumi.Resource) -> Sequence[str]:
    """Whom SSH is open to. The default is found and shown; the world only where somebody wrote it."""
    networks = spec.ssh_from or (own_address.find(),)
    if spec.ssh_from is None and ":" in networks[0]:
        raise ProviderError(
            f"this machine is seen with {networks[0]}, and the cluster's network has IPv4 only: write the IPv4 network "
            "that you will come from under ssh_from"
        )
    pulumi.log.info(f"SSH to the head is open to {', '.join(networks)} and nobody else (key ssh_from)", shown_at)
    if any(each.endswith("/0") for each in networks):
        pulumi.log.warn("SSH to the head is open to the whole world, as ssh_from says", shown_at)
    return networks


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


def _cluster(spec: ClusterSpec, deployment: Deployment, choice: planning.Plan, known: Mapping[str, Any]) -> Cluster:
    price = known["price"]
    return Cluster(
        version=VERSION,
        project=deployment.project,
        stack=deployment.stack,
        provider="gcp",
        region=choice.region,
        zone=known["zone"],
        created_at=datetime.fromisoformat(known["created_at"]),
        expires_at=datetime.fromisoformat(known["expires_at"]),
        price=Price(
            usd_per_hour=price["usd_per_hour"], source=price["source"], as_of=datetime.fromisoformat(price["as_of"])
        ),
        shared_storage=None,
        storage=SharedStorage(**known["storage"]) if known["storage"] else None,
        nodes=tuple(_node(spec, choice.machine, machine, rank=rank) for rank, machine in enumerate(known["machines"])),
    )


def _node(spec: ClusterSpec, kind: InstanceType, machine: Mapping[str, Any], *, rank: int) -> Node:
    """The head's public address is its machine's own, so that it goes when the machine does."""
    return Node(
        name=machine["name"],
        provider_id=machine["id"],
        rank=rank,
        public=Endpoint(host=machine["public_address"]) if rank == 0 else None,
        private=Endpoint(host=machine["private_address"]),
        user=USER,
        host_key=machine["host_key"],
        work_dir=WORK_DIR,
        processes=spec.processes_per_node or kind.gpu_count,
        cpu_threads=kind.vcpus,
        gpu_model=kind.gpu_model,
        gpu_count=kind.gpu_count,
        gpu_memory_gib=kind.gpu_memory_gib,
    )
