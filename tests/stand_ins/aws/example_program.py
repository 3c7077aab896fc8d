"""The Pulumi program of the stand-in's own test: what a cluster's stack has, on the unmodified pulumi_aws."""

import json

import pulumi
import pulumi_aws as aws

config = pulumi.Config()
wrong = config.get("wrong")
tags = {"trainstack": "trainstack/trial/dev", "round": config.get("round") or "1"}

vpc = aws.ec2.Vpc("vpc", cidr_block="10.20.0.0/16", enable_dns_hostnames=True, tags=tags)
zones = ["us-east-1a", "us-east-1b"]
subnets = [
    aws.ec2.Subnet(
        f"subnet-{i}",
        vpc_id=vpc.id,
        cidr_block=f"10.20.{i}.0/24",
        availability_zone=zone,
        map_public_ip_on_launch=i == 0,
        tags=tags,
    )
    for i, zone in enumerate(zones)
]
gateway = aws.ec2.InternetGateway("gateway", vpc_id=vpc.id, tags=tags)
group = aws.ec2.SecurityGroup("group", vpc_id=vpc.id, description="all of the gang", tags=tags)
for direction in (aws.vpc.SecurityGroupIngressRule, aws.vpc.SecurityGroupEgressRule):
    direction(
        f"gang-{direction.__name__}",
        security_group_id=group.id,
        referenced_security_group_id=group.id,
        ip_protocol="-1",
        tags=tags,
    )
aws.vpc.SecurityGroupIngressRule(
    "ssh", security_group_id=group.id, cidr_ipv4="203.0.113.7/32", ip_protocol="tcp", from_port=22, to_port=22
)
placement = aws.ec2.PlacementGroup("placement", strategy="cluster", tags=tags)
address = aws.ec2.Eip("address", domain="vpc", tags=tags)
nat = aws.ec2.NatGateway(
    "nat",
    allocation_id=address.id,
    subnet_id=subnets[0].id,
    tags=tags,
    opts=pulumi.ResourceOptions(depends_on=[gateway]),
)
tables = []
for i, target in enumerate(({"gateway_id": gateway.id}, {"nat_gateway_id": nat.id})):
    table = aws.ec2.RouteTable(f"table-{i}", vpc_id=vpc.id, tags=tags)
    aws.ec2.Route(f"default-{i}", route_table_id=table.id, destination_cidr_block="0.0.0.0/0", **target)
    aws.ec2.RouteTableAssociation(f"association-{i}", route_table_id=table.id, subnet_id=subnets[i].id)
    tables.append(table)
aws.ec2.VpcEndpoint(
    "s3",
    vpc_id=vpc.id,
    service_name="com.amazonaws.us-east-1.s3",
    vpc_endpoint_type="Gateway",
    route_table_ids=[table.id for table in tables],
    tags=tags,
)
bucket = aws.s3.Bucket("checkpoints", force_destroy=True, tags=tags)
aws.s3.BucketPublicAccessBlock(
    "private",
    bucket=bucket.id,
    block_public_acls=True,
    block_public_policy=True,
    ignore_public_acls=True,
    restrict_public_buckets=True,
)
policy = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "ec2.amazonaws.com"}}],
}
role = aws.iam.Role("role", assume_role_policy=json.dumps(policy), tags=tags)
reading = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}]}
aws.iam.RolePolicy("reads", role=role.id, policy=json.dumps(reading))
profile = aws.iam.InstanceProfile("profile", role=role.name, tags=tags)
key = aws.ec2.KeyPair("key", public_key=config.require("key"), tags=tags)
template = aws.ec2.LaunchTemplate(
    "template",
    image_id="ami-0d1a0000000022040",
    instance_type="g5.12xlarge",
    key_name=key.key_name,
    network_interfaces=[
        {"device_index": 0, "network_card_index": 0, "subnet_id": subnets[1].id, "security_groups": [group.id]}
    ],
    metadata_options={"http_tokens": "required", "http_put_response_hop_limit": 1},
    tags=tags,
)
interface = aws.ec2.NetworkInterface("interface", subnet_id=subnets[1].id, security_groups=[group.id], tags=tags)
bastion = aws.ec2.Instance(
    "bastion",
    ami="ami-0cab0000000022040",
    instance_type="t3.micro",
    subnet_id=subnets[0].id,
    vpc_security_group_ids=[group.id],
    key_name=key.key_name,
    associate_public_ip_address=True,
    iam_instance_profile=profile.name,
    metadata_options={"http_tokens": "required"},
    root_block_device={"volume_size": 20, "volume_type": "gp3"},
    user_data="#!/bin/sh\nshutdown -h +600\n",
    tags=tags,
)
head_address = aws.ec2.Eip("head", domain="vpc", tags=tags)
aws.ec2.EipAssociation("head", allocation_id=head_address.id, network_interface_id=interface.id)
reserved = aws.ec2.CapacityReservation(
    "reserved",
    instance_type="g5.12xlarge",
    instance_platform="Linux/UNIX",
    availability_zone="us-east-1b",
    instance_count=2,
    tags=tags,
)
lustre = aws.fsx.LustreFileSystem(
    "scratch",
    deployment_type="SCRATCH_2",
    storage_capacity=1200,
    subnet_ids=subnets[1].id,
    security_group_ids=[group.id],
    skip_final_backup=True,
    tags=tags,
)
shared = aws.efs.FileSystem("shared", encrypted=True, throughput_mode="elastic", tags=tags)
aws.efs.MountTarget("shared", file_system_id=shared.id, subnet_id=subnets[1].id, security_groups=[group.id])
west = aws.ec2.Vpc("west", cidr_block="10.30.0.0/16", region="us-west-2", tags=tags)

if wrong == "type":
    aws.ec2.Vpc("wrong", cidr_block=17)
if wrong == "argument":
    aws.ec2.LaunchTemplate("wrong", placement={"group": "typo"})
if wrong == "missing":
    aws.ec2.EipAssociation("wrong")
    pulumi.CustomResource("aws:ec2/subnet:Subnet", "wrong", {"cidrBlock": "10.20.9.0/24"})

pulumi.export("vpc", vpc.id)
pulumi.export("west", west.arn)
pulumi.export("group", group.id)
pulumi.export("public_ip", nat.public_ip)
pulumi.export("placement", placement.name)
pulumi.export("bucket", bucket.bucket)
