"""Storage that the nodes share on GCP: Filestore, or a bucket with a service account that may do nothing else.

Mounting is bootstrap's work; here it is made, and its address told.
"""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from infra.gang_resource import Gang
from infra.providers.base import Deployment
from infra.providers.gcp import names
from infra.providers.gcp.network import Networks
from infra.spec import ClusterSpec

SHARE = "shared"
TIER = "ZONAL"


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """A bucket, and the account with which the nodes read and write it: their one cloud credential."""

    address: pulumi.Output[dict[str, str]]
    """SharedStorage's fields."""
    service_account: pulumi.Output[str]
    ready: pulumi.Resource


def declare(
    spec: ClusterSpec, deployment: Deployment, *, gang: Gang, net: Networks, opts: pulumi.ResourceOptions
) -> pulumi.Output[dict[str, str]] | None:
    """Filestore in the zone of the gang; SharedStorage's fields. None where the spec asks for none."""
    if spec.storage is None or spec.storage.kind != "nfs" or spec.storage.size_gib is None:
        return None
    filestore = gcp.filestore.Instance(
        "shared",
        name=names.name(deployment, "shared"),
        description=names.description(deployment),
        labels=names.labels(deployment),
        tier=TIER,
        location=gang.zone,
        file_shares=gcp.filestore.InstanceFileSharesArgs(name=SHARE, capacity_gb=spec.storage.size_gib),
        networks=[gcp.filestore.InstanceNetworkArgs(network=net.main.id, modes=["MODE_IPV4"])],
        # A gang that is made anew in another zone of the region still reaches it; moving it would empty it.
        opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(ignore_changes=["location"])),
    )
    return filestore.networks.apply(
        lambda found: {"kind": "nfs", "address": f"{(found[0].ip_addresses or ['?'])[0]}:/{SHARE}"}
    )


def bucket(deployment: Deployment, *, region: str, opts: pulumi.ResourceOptions) -> Bucket:
    """An empty bucket costs nothing, so it may come before the gang, which needs the account."""
    made = gcp.storage.Bucket(
        "shared",
        name=names.bucket(deployment),
        location=region.upper(),
        labels=names.labels(deployment),
        uniform_bucket_level_access=True,
        public_access_prevention="enforced",
        force_destroy=True,  # it ends with the stack, like the disks
        # What is deleted would be kept, and billed, for a week.
        soft_delete_policy=gcp.storage.BucketSoftDeletePolicyArgs(retention_duration_seconds=0),
        opts=opts,
    )
    account = gcp.serviceaccount.Account(
        "nodes",
        account_id=names.service_account(deployment),
        display_name="trainstack nodes",
        description=names.description(deployment),
        opts=opts,
    )
    right = gcp.storage.BucketIAMMember(
        "nodes",
        bucket=made.name,
        role="roles/storage.objectUser",  # objects of this bucket, and not the bucket itself
        member=account.email.apply(lambda email: f"serviceAccount:{email}"),
        opts=opts,
    )
    return Bucket(
        address=made.name.apply(lambda name: {"kind": "bucket", "address": f"gs://{name}"}),
        service_account=account.email,
        ready=right,
    )
