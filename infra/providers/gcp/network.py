"""The cluster's networks on GCP, by how the machine's GPUs talk to those of other nodes.

    single    main
    tcpx      main, and 4 networks with one interface each (GPUDirect-TCPX)
    tcpxo     main, and 8 (GPUDirect-TCPXO)
    rdma      main, a second host network, and in every zone that the gang may go to one with that zone's RoCE profile,
              whose 8 subnets take an RDMA interface each

Every interface of a machine needs a network of its own, but for RoCE. Firewall: SSH to the head from `ssh_from`, in
each network everything from its own subnet; none in a RoCE network, which takes none and lets its members talk.
All that is declared here is free of charge, so it is made before the gang; NAT is in resources.py.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_gcp as gcp

from infra.providers.base import Deployment
from infra.providers.gcp import body, names
from infra.providers.gcp import plan as planning
from infra.providers.gcp.instances import InstanceType

ADDRESSES = ipaddress.ip_network("10.64.0.0/12")
"""Of /20 blocks: one for each host network, then 8 for the RoCE network of each zone, by the zone's letter."""
_HOST_BLOCKS = 16
RDMA_INTERFACES = 8
# Jumbo frames, as Google's own blueprints set them; towards the internet Google fits TCP's segments by itself.
MTU = {"single": 8896, "tcpx": 8244, "tcpxo": 8244, "rdma": 8896}


@dataclass(frozen=True, kw_only=True)
class Networks:
    """What the gang and the things that bill are attached to."""

    main: gcp.compute.Network
    interfaces: Sequence[Mapping[str, Any]]
    """Of each machine, in the order of its cards, before those of `places`: network, subnetwork, kind."""
    places: Mapping[str, Sequence[Mapping[str, Any]]]
    """By zone: the RDMA interfaces. Empty for other machines."""
    ready: Sequence[pulumi.Resource]
    """What must be there before a machine is of use."""


def block(number: int) -> str:
    return str(list(ADDRESSES.subnets(new_prefix=20))[number])


def roce_blocks(zone: str) -> list[str]:
    """By the zone's letter, so that another zone's coming or going moves none."""
    first = _HOST_BLOCKS + (ord(zone[-1]) - ord("a")) * RDMA_INTERFACES
    return [block(first + number) for number in range(RDMA_INTERFACES)]


def profile(project: str, zone: str) -> str:
    return f"projects/{project}/global/networkProfiles/{zone}-vpc-roce"


def declare(
    deployment: Deployment,
    machine: InstanceType,
    *,
    project: str,
    region: str,
    roce_zones: Sequence[str],
    ssh_from: Sequence[str],
    opts: pulumi.ResourceOptions,
) -> Networks:
    declared = [
        _host_network(deployment, number, mtu=MTU[machine.networking], region=region, opts=opts)
        for number in range(planning.host_networks(machine))
    ]
    main = declared[0][0]
    ready: list[pulumi.Resource] = [
        gcp.compute.Firewall(
            "ssh",
            name=names.name(deployment, "ssh"),
            description=names.description(deployment),
            network=main.id,
            direction="INGRESS",
            source_ranges=list(ssh_from),
            target_tags=[body.tags(deployment, is_head=True)[1]],
            allows=[gcp.compute.FirewallAllowArgs(protocol="tcp", ports=["22"])],
            opts=opts,
        )
    ]
    for number, (network, subnet) in enumerate(declared):
        ready.append(
            gcp.compute.Firewall(
                f"within-{number}",
                name=names.name(deployment, f"within-{number}"),
                description=names.description(deployment),
                network=network.id,
                direction="INGRESS",
                source_ranges=[block(number)],
                allows=[gcp.compute.FirewallAllowArgs(protocol=protocol) for protocol in ("tcp", "udp", "icmp")],
                # Hosts of the subnet only: its interfaces can't be had without it.
                opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[subnet])),
            )
        )
    return Networks(
        main=main,
        interfaces=[{"network": network.id, "subnetwork": subnet.id, "kind": "GVNIC"} for network, subnet in declared],
        places={
            zone: _roce_network(deployment, zone, project=project, region=region, opts=opts)
            for zone in (roce_zones if machine.networking == "rdma" else ())
        },
        ready=ready,
    )


def _host_network(
    deployment: Deployment, number: int, *, mtu: int, region: str, opts: pulumi.ResourceOptions
) -> tuple[gcp.compute.Network, gcp.compute.Subnetwork]:
    """Number 0 is the main one. With a subnet in which Google's own services are reached without the internet."""
    name = f"net-{number}"
    network = gcp.compute.Network(
        name,
        name=names.name(deployment, name),
        description=names.description(deployment),
        auto_create_subnetworks=False,
        mtu=mtu,
        opts=opts,
    )
    subnet = gcp.compute.Subnetwork(
        name,
        name=names.name(deployment, name),
        description=names.description(deployment),
        network=network.id,
        region=region,
        ip_cidr_range=block(number),
        private_ip_google_access=True,
        opts=opts,
    )
    return network, subnet


def _roce_network(
    deployment: Deployment, zone: str, *, project: str, region: str, opts: pulumi.ResourceOptions
) -> list[Mapping[str, Any]]:
    """One network with the zone's profile, and its interfaces, each in a subnet of its own."""
    name = f"roce-{zone}"
    network = gcp.compute.Network(
        name,
        name=names.name(deployment, name),
        description=names.description(deployment),
        auto_create_subnetworks=False,
        mtu=MTU["rdma"],
        network_profile=profile(project, zone),
        opts=opts,
    )
    subnets = [
        gcp.compute.Subnetwork(
            f"{name}-{number}",
            name=names.name(deployment, f"{name}-{number}"),
            description=names.description(deployment),
            network=network.id,
            region=region,
            ip_cidr_range=addresses,
            opts=opts,
        )
        for number, addresses in enumerate(roce_blocks(zone))
    ]
    return [{"network": network.id, "subnetwork": subnet.id, "kind": "MRDMA"} for subnet in subnets]
