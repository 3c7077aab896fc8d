"""The plug-in's resource types of storage and of IAM: FSx for Lustre, EFS, S3, roles."""

from __future__ import annotations

import json
from typing import Any

from botocore.exceptions import ClientError

from tests.stand_ins.aws.resources import Aws, Inputs, Kind, adopt, is_gone, pairs, poll, quietly, request, unpaired

Tags = dict[str, str]


def _found(call: Any) -> Any:
    """The answer, or None when there is no such thing."""
    try:
        return call()
    except ClientError as error:
        if is_gone(error):
            return None
        raise


# -- FSx ------------------------------------------------------------------------------------------------------------

LUSTRE_TOP = frozenset({"storageCapacity", "storageType", "subnetIds", "securityGroupIds", "kmsKeyId", "backupId"})


def _create_lustre(aws: Aws, inputs: Inputs, tags: Tags) -> str:
    top = {key: value for key, value in inputs.items() if key in LUSTRE_TOP}
    own = {"tags", "region", "skipFinalBackup", "finalBackupTags", "fileSystemTypeVersion", *LUSTRE_TOP}
    config = {key: value for key, value in inputs.items() if key not in own}
    if "subnetIds" in top and isinstance(top["subnetIds"], str):
        top["subnetIds"] = [top["subnetIds"]]
    wanted = request(aws, "fsx", "create_file_system", {**top, "lustreConfiguration": config})
    answer = aws.call(
        "fsx",
        "create_file_system",
        FileSystemType="LUSTRE",
        FileSystemTypeVersion=inputs.get("fileSystemTypeVersion"),
        Tags=pairs(tags) or None,
        **wanted,
    )
    return str(answer["FileSystem"]["FileSystemId"])


def _read_lustre(aws: Aws, system: str, _: Inputs) -> dict[str, Any] | None:
    answer = _found(lambda: aws.call("fsx", "describe_file_systems", FileSystemIds=[system]))
    if not answer or not answer["FileSystems"]:
        return None
    item = answer["FileSystems"][0]
    return {
        "arn": item.get("ResourceARN"),
        "dnsName": item.get("DNSName"),
        "mountName": item.get("LustreConfiguration", {}).get("MountName", "fsx"),
        "networkInterfaceIds": item.get("NetworkInterfaceIds", []),
        "ownerId": item.get("OwnerId"),
        "vpcId": item.get("VpcId"),
        "tagsAll": unpaired(item.get("Tags")),
    }


def _delete_lustre(aws: Aws, system: str, state: Inputs) -> None:
    skip = {"LustreConfiguration": {"SkipFinalBackup": bool(state.get("skipFinalBackup"))}}
    quietly(lambda: aws.call("fsx", "delete_file_system", FileSystemId=system, **skip))
    poll(system, lambda: _read_lustre(aws, system, state) is None)


def _tag_lustre(aws: Aws, system: str, old: Tags, new: Tags) -> None:
    arn = aws.arn(f"file-system/{system}", service="fsx")
    dropped = [key for key in old if key not in new]
    if dropped:
        aws.call("fsx", "untag_resource", ResourceARN=arn, TagKeys=dropped)
    if new:
        aws.call("fsx", "tag_resource", ResourceARN=arn, Tags=pairs(new))


# -- EFS ------------------------------------------------------------------------------------------------------------


def _create_efs(aws: Aws, inputs: Inputs, tags: Tags) -> str:
    without = frozenset({"tags", "region", "lifecyclePolicies", "protection"})
    wanted = request(aws, "efs", "create_file_system", inputs, without=without)
    return str(aws.call("efs", "create_file_system", **wanted, Tags=pairs(tags) or None)["FileSystemId"])


def _settle_efs(aws: Aws, system: str, inputs: Inputs) -> None:
    def available() -> bool:
        answer = _found(lambda: aws.call("efs", "describe_file_systems", FileSystemId=system))
        return bool(answer) and answer["FileSystems"][0]["LifeCycleState"] == "available"

    poll(system, available)
    policies = [
        {key[0].upper() + key[1:]: value for key, value in policy.items()}
        for policy in inputs.get("lifecyclePolicies", [])
    ]
    if policies:
        aws.call("efs", "put_lifecycle_configuration", FileSystemId=system, LifecyclePolicies=policies)


def _read_efs(aws: Aws, system: str, _: Inputs) -> dict[str, Any] | None:
    answer = _found(lambda: aws.call("efs", "describe_file_systems", FileSystemId=system))
    if not answer or not answer["FileSystems"]:
        return None
    item = answer["FileSystems"][0]
    return {
        **adopt(item),
        "arn": aws.arn(f"file-system/{system}", service="elasticfilesystem"),
        "dnsName": f"{system}.efs.{aws.region}.amazonaws.com",
    }


def _tag_efs(aws: Aws, system: str, old: Tags, new: Tags) -> None:
    dropped = [key for key in old if key not in new]
    if dropped:
        aws.call("efs", "untag_resource", ResourceId=system, TagKeys=dropped)
    if new:
        aws.call("efs", "tag_resource", ResourceId=system, Tags=pairs(new))


def _create_target(aws: Aws, inputs: Inputs, _: Tags) -> str:
    answer = aws.call(
        "efs",
        "create_mount_target",
        FileSystemId=inputs["fileSystemId"],
        SubnetId=inputs["subnetId"],
        SecurityGroups=inputs.get("securityGroups"),
        IpAddress=inputs.get("ipAddress"),
    )
    return str(answer["MountTargetId"])


def _read_target(aws: Aws, target: str, _: Inputs) -> dict[str, Any] | None:
    answer = _found(lambda: aws.call("efs", "describe_mount_targets", MountTargetId=target))
    if not answer or not answer["MountTargets"]:
        return None
    item = answer["MountTargets"][0]
    return {**adopt(item), "dnsName": f"{item['FileSystemId']}.efs.{aws.region}.amazonaws.com"}


def _delete_target(aws: Aws, target: str, state: Inputs) -> None:
    quietly(lambda: aws.call("efs", "delete_mount_target", MountTargetId=target))
    poll(target, lambda: _read_target(aws, target, state) is None)


# -- S3 -------------------------------------------------------------------------------------------------------------


def _create_bucket(aws: Aws, inputs: Inputs, tags: Tags) -> str:
    place = None if aws.region == "us-east-1" else {"LocationConstraint": aws.region}
    without = {"bucket", "bucketPrefix", "tags", "region", "forceDestroy"}
    unserved = [key for key in inputs if key not in without and not key.startswith("__")]
    if unserved:
        raise NotImplementedError(f"the stand-in doesn't serve {', '.join(unserved)} of a bucket")
    aws.call("s3", "create_bucket", Bucket=inputs["bucket"], CreateBucketConfiguration=place)
    if tags:
        aws.call("s3", "put_bucket_tagging", Bucket=inputs["bucket"], Tagging={"TagSet": pairs(tags)})
    return str(inputs["bucket"])


def _read_bucket(aws: Aws, bucket: str, _: Inputs) -> dict[str, Any] | None:
    if _found(lambda: aws.call("s3", "head_bucket", Bucket=bucket)) is None:
        return None
    try:
        tags = unpaired(aws.call("s3", "get_bucket_tagging", Bucket=bucket)["TagSet"])
    except ClientError as error:
        if error.response["Error"]["Code"] != "NoSuchTagSet":
            raise
        tags = {}
    return {
        "bucket": bucket,
        "arn": f"arn:aws:s3:::{bucket}",
        "bucketDomainName": f"{bucket}.s3.amazonaws.com",
        "bucketRegionalDomainName": f"{bucket}.s3.{aws.region}.amazonaws.com",
        "bucketRegion": aws.region,
        "tagsAll": tags,
    }


def _delete_bucket(aws: Aws, bucket: str, state: Inputs) -> None:
    if state.get("forceDestroy") and _read_bucket(aws, bucket, state) is not None:
        for page in aws.client("s3").get_paginator("list_object_versions").paginate(Bucket=bucket):
            for item in [*page.get("Versions", []), *page.get("DeleteMarkers", [])]:
                aws.call("s3", "delete_object", Bucket=bucket, Key=item["Key"], VersionId=item["VersionId"])
    quietly(lambda: aws.call("s3", "delete_bucket", Bucket=bucket))


def _tag_bucket(aws: Aws, bucket: str, _: Tags, new: Tags) -> None:
    if new:
        aws.call("s3", "put_bucket_tagging", Bucket=bucket, Tagging={"TagSet": pairs(new)})
    else:
        aws.call("s3", "delete_bucket_tagging", Bucket=bucket)


BLOCKS = {
    "blockPublicAcls": "BlockPublicAcls",
    "blockPublicPolicy": "BlockPublicPolicy",
    "ignorePublicAcls": "IgnorePublicAcls",
    "restrictPublicBuckets": "RestrictPublicBuckets",
}


def _put_block(aws: Aws, inputs: Inputs) -> None:
    wanted = {name: bool(inputs.get(key)) for key, name in BLOCKS.items()}
    aws.call("s3", "put_public_access_block", Bucket=inputs["bucket"], PublicAccessBlockConfiguration=wanted)


def _create_block(aws: Aws, inputs: Inputs, _: Tags) -> str:
    _put_block(aws, inputs)
    return str(inputs["bucket"])


def _read_block(aws: Aws, bucket: str, _: Inputs) -> dict[str, Any] | None:
    answer = _found(lambda: aws.call("s3", "get_public_access_block", Bucket=bucket))
    return None if answer is None else {"bucket": bucket, **adopt(answer["PublicAccessBlockConfiguration"])}


def _text(policy: Any) -> str:
    return policy if isinstance(policy, str) else json.dumps(policy)


def _create_policy(aws: Aws, inputs: Inputs, _: Tags) -> str:
    aws.call("s3", "put_bucket_policy", Bucket=inputs["bucket"], Policy=_text(inputs["policy"]))
    return str(inputs["bucket"])


def _read_policy(aws: Aws, bucket: str, _: Inputs) -> dict[str, Any] | None:
    answer = _found(lambda: aws.call("s3", "get_bucket_policy", Bucket=bucket))
    return None if answer is None else {"bucket": bucket}


def _delete_s3(operation: str) -> Any:
    return lambda aws, bucket, _: quietly(lambda: aws.call("s3", operation, Bucket=bucket))


KINDS = {
    "aws:fsx/lustreFileSystem:LustreFileSystem": Kind(
        create=_create_lustre,
        read=_read_lustre,
        delete=_delete_lustre,
        replace=frozenset({"subnetIds", "deploymentType", "storageType", "securityGroupIds", "efaEnabled"}),
        state_only=frozenset({"skipFinalBackup", "finalBackupTags"}),
        tag=_tag_lustre,
    ),
    "aws:efs/fileSystem:FileSystem": Kind(
        create=_create_efs,
        settle=_settle_efs,
        read=_read_efs,
        delete=lambda aws, system, _: quietly(lambda: aws.call("efs", "delete_file_system", FileSystemId=system)),
        replace=frozenset({"creationToken", "performanceMode", "encrypted", "kmsKeyId", "availabilityZoneName"}),
        tag=_tag_efs,
        auto_name="creationToken",
        longest_name=64,
    ),
    "aws:efs/mountTarget:MountTarget": Kind(
        create=_create_target,
        read=_read_target,
        delete=_delete_target,
        replace=frozenset({"fileSystemId", "subnetId", "ipAddress", "securityGroups"}),
    ),
    "aws:s3/bucket:Bucket": Kind(
        create=_create_bucket,
        read=_read_bucket,
        delete=_delete_bucket,
        replace=frozenset({"bucket", "bucketPrefix"}),
        state_only=frozenset({"forceDestroy"}),
        tag=_tag_bucket,
        auto_name="bucket",
        longest_name=63,
    ),
    "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock": Kind(
        create=_create_block,
        read=_read_block,
        delete=_delete_s3("delete_public_access_block"),
        replace=frozenset({"bucket"}),
        updates={key: lambda aws, _, __, new: _put_block(aws, new) for key in BLOCKS},
    ),
    "aws:s3/bucketPolicy:BucketPolicy": Kind(
        create=_create_policy,
        read=_read_policy,
        delete=_delete_s3("delete_bucket_policy"),
        replace=frozenset({"bucket"}),
        updates={"policy": lambda aws, _, __, new: _create_policy(aws, new, {})},
    ),
}
