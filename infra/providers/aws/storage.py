"""Storage that the nodes share on AWS: FSx for Lustre, EFS, or an S3 bucket with a role that may do nothing else.

Mounting is bootstrap's work; here it is made, in the gang's zone and behind the gang's own security group.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.gang_resource import Gang
from infra.providers.aws.network import Network
from infra.providers.base import Deployment
from infra.spec import ClusterSpec

PREFIX, PATH = "trainstack-", "/trainstack/"  # of the bucket's name, and IAM's path: how leftovers finds them


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """A bucket, and the instance profile with which the nodes read and write it: their one cloud credential."""

    address: pulumi.Output[dict[str, str]]
    """SharedStorage's fields."""
    instance_profile: pulumi.Output[str]


def declare(
    spec: ClusterSpec, *, gang: Gang, net: Network, opts: pulumi.ResourceOptions
) -> pulumi.Output[dict[str, str]] | None:
    """Lustre or EFS in the gang's subnet; SharedStorage's fields. None where the spec asks for neither."""
    if spec.storage is None or spec.storage.kind == "bucket":
        return None
    subnets = pulumi.Output.all(**{zone: subnet.id for zone, subnet in net.private.items()})
    subnet = pulumi.Output.all(zone=gang.zone, subnets=subnets).apply(lambda it: str(it["subnets"][it["zone"]]))
    if spec.storage.kind == "lustre":
        return _lustre(spec.storage.size_gib, subnet, net, opts)
    return _efs(subnet, net, opts)


def _lustre(
    size_gib: int | None, subnet: pulumi.Output[str], net: Network, opts: pulumi.ResourceOptions
) -> pulumi.Output[dict[str, str]]:
    filesystem = aws.fsx.LustreFileSystem(
        "shared",
        deployment_type="SCRATCH_2",  # not replicated, the cheapest: checkpoints that must last belong into a bucket
        storage_capacity=size_gib,
        subnet_ids=subnet,
        security_group_ids=[net.members.id],
        opts=opts,
    )
    where = pulumi.Output.all(filesystem.dns_name, filesystem.mount_name)
    return where.apply(lambda it: {"kind": "lustre", "address": f"{it[0]}@tcp:/{it[1]}"})


def _efs(subnet: pulumi.Output[str], net: Network, opts: pulumi.ResourceOptions) -> pulumi.Output[dict[str, str]]:
    filesystem = aws.efs.FileSystem("shared", encrypted=True, throughput_mode="elastic", opts=opts)
    target = aws.efs.MountTarget(
        "shared", file_system_id=filesystem.id, subnet_id=subnet, security_groups=[net.members.id], opts=opts
    )
    return target.ip_address.apply(lambda address: {"kind": "nfs", "address": f"{address}:/"})


def name(deployment: Deployment) -> str:
    """Of the bucket, the role and its profile. Bucket names are the world's: lower case, up to 63 characters."""
    return f"{PREFIX}{deployment.digest}-{deployment.owner}"


def bucket(deployment: Deployment, opts: pulumi.ResourceOptions) -> Bucket:
    """An empty bucket costs nothing, so it may come before the gang, which needs the profile."""
    own_name = name(deployment)
    made = aws.s3.Bucket("shared", bucket=own_name, force_destroy=True, opts=opts)
    aws.s3.BucketPublicAccessBlock(
        "shared",
        bucket=made.id,
        block_public_acls=True,
        block_public_policy=True,
        ignore_public_acls=True,
        restrict_public_buckets=True,
        opts=opts,
    )
    aws.s3.BucketPolicy("shared", bucket=made.id, policy=made.arn.apply(_only_by_tls), opts=opts)
    # IAM is the account's and not the region's: names of up to 64 characters.
    role = aws.iam.Role("nodes", name=own_name, path=PATH, assume_role_policy=json.dumps(_assumed_by_ec2()), opts=opts)
    aws.iam.RolePolicy("nodes", name="bucket", role=role.name, policy=made.arn.apply(_only_this_bucket), opts=opts)
    profile = aws.iam.InstanceProfile("nodes", name=own_name, path=PATH, role=role.name, opts=opts)
    return Bucket(
        address=made.id.apply(lambda id_: {"kind": "bucket", "address": f"s3://{id_}"}), instance_profile=profile.name
    )


def _assumed_by_ec2() -> dict[str, Any]:
    statement = {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
    return {"Version": "2012-10-17", "Statement": [statement]}


def _only_this_bucket(arn: str) -> str:
    objects = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
    statements = [
        {"Effect": "Allow", "Action": ["s3:ListBucket", "s3:GetBucketLocation"], "Resource": arn},
        {"Effect": "Allow", "Action": objects, "Resource": f"{arn}/*"},
    ]
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


def _only_by_tls(arn: str) -> str:
    statement = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": [arn, f"{arn}/*"],
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})
