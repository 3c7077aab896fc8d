"""The cluster's network on AWS: one VPC, and in every zone that the gang may go to a public and a private subnet.

    public subnet     the head's first interface (Elastic IP), the NAT gateway
    private subnet    every other interface; EFA's traffic stays within one subnet, so all efa-only ones are here
    security group    SSH from `ssh_from`; everything among members, in and out (EFA needs the rule for out as well)

All that is declared here is free of charge, so it is made before the gang. What bills is in resources.py.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

VPC = ipaddress.ip_network("10.77.0.0/16")


@dataclass(frozen=True, kw_only=True)
class Network:
    """What the gang and the things that bill are attached to."""

    vpc: aws.ec2.Vpc
    public: Mapping[str, aws.ec2.Subnet]
    """By zone; likewise `private` and `placement_groups`."""
    private: Mapping[str, aws.ec2.Subnet]
    placement_groups: Mapping[str, aws.ec2.PlacementGroup]
    private_routes: aws.ec2.RouteTable
    members: aws.ec2.SecurityGroup
    ready: Sequence[pulumi.Resource]
    """What must be there before a machine is of use: rules and routes."""


def blocks(zone: str) -> tuple[str, str]:
    """The zone's public and private address block; by its letter, so that another zone's coming or going moves none.

    251 and 1,019 usable addresses: AWS keeps five of each subnet.
    """
    letter = ord(zone[-1]) - ord("a")
    public = list(VPC.subnets(new_prefix=24))[letter]
    private = list(VPC.subnets(new_prefix=22))[16 + letter]
    return str(public), str(private)


def declare(
    *, zones: Sequence[str], region: str, digest: str, ssh_from: Sequence[str], opts: pulumi.ResourceOptions
) -> Network:
    """`digest` keeps the names of two checkouts apart; tags come from the provider (resources.py)."""
    vpc = aws.ec2.Vpc(
        "vpc",
        cidr_block=str(VPC),
        enable_dns_support=True,
        enable_dns_hostnames=True,
        tags={"Name": f"trainstack-{digest}"},
        opts=opts,
    )
    gateway = aws.ec2.InternetGateway("gateway", vpc_id=vpc.id, opts=opts)
    public_routes = aws.ec2.RouteTable("public", vpc_id=vpc.id, opts=opts)
    private_routes = aws.ec2.RouteTable("private", vpc_id=vpc.id, opts=opts)
    out = aws.ec2.Route(
        "public-out",
        route_table_id=public_routes.id,
        destination_cidr_block="0.0.0.0/0",
        gateway_id=gateway.id,
        opts=opts,
    )
    public: dict[str, aws.ec2.Subnet] = {}
    private: dict[str, aws.ec2.Subnet] = {}
    ready: list[pulumi.Resource] = [out]
    for zone in zones:
        for kind, subnets, routes, block in zip(
            ("public", "private"), (public, private), (public_routes, private_routes), blocks(zone), strict=True
        ):
            name = f"{kind}-{zone}"
            subnets[zone] = aws.ec2.Subnet(
                name,
                vpc_id=vpc.id,
                availability_zone=zone,
                cidr_block=block,
                map_public_ip_on_launch=False,
                tags={"Name": f"trainstack-{digest}-{name}"},
                opts=opts,
            )
            ready.append(
                aws.ec2.RouteTableAssociation(name, subnet_id=subnets[zone].id, route_table_id=routes.id, opts=opts)
            )
    # A gateway endpoint costs nothing, and keeps what goes to S3 off the NAT gateway's bill.
    aws.ec2.VpcEndpoint(
        "s3",
        vpc_id=vpc.id,
        service_name=f"com.amazonaws.{region}.s3",
        vpc_endpoint_type="Gateway",
        route_table_ids=[public_routes.id, private_routes.id],
        opts=opts,
    )
    members = aws.ec2.SecurityGroup(
        "members",
        vpc_id=vpc.id,
        description="trainstack: SSH from the user, everything among the nodes",
        tags={"Name": f"trainstack-{digest}"},
        opts=opts,
    )
    ready += _rules(members, ssh_from=ssh_from, opts=opts)
    return Network(
        vpc=vpc,
        public=public,
        private=private,
        placement_groups={
            # One a zone: a cluster placement group belongs to the zone of its first machine. Without a name of ours:
            # one that a killed `up` made, and the engine's state doesn't know, would stand in the next one's way.
            zone: aws.ec2.PlacementGroup(f"trainstack-{digest}-{zone}", strategy="cluster", opts=opts)
            for zone in zones
        },
        private_routes=private_routes,
        members=members,
        ready=ready,
    )


def _rules(
    members: aws.ec2.SecurityGroup, *, ssh_from: Sequence[str], opts: pulumi.ResourceOptions
) -> list[pulumi.Resource]:
    rules: list[pulumi.Resource] = [
        aws.vpc.SecurityGroupIngressRule(
            "from-members",
            security_group_id=members.id,
            referenced_security_group_id=members.id,
            ip_protocol="-1",
            opts=opts,
        ),
        # "To everywhere" is not enough for EFA, whose packets have no address that it could match.
        aws.vpc.SecurityGroupEgressRule(
            "to-members",
            security_group_id=members.id,
            referenced_security_group_id=members.id,
            ip_protocol="-1",
            opts=opts,
        ),
        aws.vpc.SecurityGroupEgressRule(
            "out", security_group_id=members.id, cidr_ipv4="0.0.0.0/0", ip_protocol="-1", opts=opts
        ),
    ]
    for network in ssh_from:
        rules.append(
            aws.vpc.SecurityGroupIngressRule(
                f"ssh-from-{network.replace('/', '-')}",
                security_group_id=members.id,
                ip_protocol="tcp",
                from_port=22,
                to_port=22,
                cidr_ipv4=network,
                opts=opts,
            )
        )
    return rules
