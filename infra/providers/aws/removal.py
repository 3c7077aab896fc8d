"""How each kind of thing on AWS is ended: region and id in; returns when it has ended, or raises with what holds it.

Not found is success. "In use" is waited for, since AWS lets go of interfaces and addresses seconds after their owner
has ended, but not for ever.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable

from infra.errors import ProviderError
from infra.providers.aws import api

WAIT_S = 180.0
_LOOK_EVERY_S = 3.0
_SAY_EVERY_S = 30.0
_INTERFACES = ("describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId")
_GROUPS = ("describe_security_groups", "SecurityGroups", "GroupId")
_SUBNETS = ("describe_subnets", "Subnets", "SubnetId")
# What may hold a thing, by the beginning of its id: operation, list, id, filter.
_HOLDERS = {
    "sg": (
        (*_INTERFACES, "group-id"),
        (*_GROUPS, "ip-permission.group-id"),
        (*_GROUPS, "egress.ip-permission.group-id"),
    ),
    "subnet": ((*_INTERFACES, "subnet-id"),),
    "vpc": ((*_INTERFACES, "vpc-id"), (*_GROUPS, "vpc-id"), (*_SUBNETS, "vpc-id")),
}
_IN_USE = ("DependencyViolation", "ResourceInUse", "InUse", "FileSystemInUse", "IncorrectState", "VolumeInUse")


def simply(service: str, operation: str, parameter: str, *, gone: str) -> Callable[[str, str], None]:
    """A kind that one call ends. `gone`: AWS's code for "not there"."""

    def remove(region: str, id_: str) -> None:
        _until_let_go(region, id_, lambda: _call(service, region, operation, gone=(gone,), **{parameter: id_}))

    return remove


def nat_gateway(region: str, id_: str) -> None:
    """Gone only when its state says so: until then it holds an address and a subnet."""
    _call("ec2", region, "delete_nat_gateway", gone=("NatGatewayNotFound",), NatGatewayId=id_)
    asked = {"Filters": [{"Name": "nat-gateway-id", "Values": [id_]}]}
    _until(
        f"NAT gateway {id_} in {region}",
        lambda: all(
            gateway["State"] == "deleted"
            for gateway in api.pages("ec2", region, "describe_nat_gateways", "NatGateways", **asked)
        ),
    )


def address(region: str, id_: str) -> None:
    wanted = [{"Name": "allocation-id", "Values": [id_]}]
    for found in api.pages("ec2", region, "describe_addresses", "Addresses", Filters=wanted):
        if association := found.get("AssociationId"):
            _call(
                "ec2",
                region,
                "disassociate_address",
                gone=("InvalidAssociationID.NotFound",),
                AssociationId=association,
            )
    gone = ("InvalidAllocationID.NotFound",)
    _until_let_go(region, id_, lambda: _call("ec2", region, "release_address", gone=gone, AllocationId=id_))


def endpoint(region: str, id_: str) -> None:
    answer = api.ask("ec2", region, "delete_vpc_endpoints", VpcEndpointIds=[id_])
    for refused in answer.get("Unsuccessful", []):
        error = refused.get("Error", {})
        if error.get("Code") != "InvalidVpcEndpointId.NotFound":
            raise ProviderError(
                f"endpoint {id_} in {region}: {error.get('Message')} ({error.get('Code')}): run it again"
            )


def internet_gateway(region: str, id_: str) -> None:
    gone = ("InvalidInternetGatewayID.NotFound", "Gateway.NotAttached")
    wanted = [{"Name": "internet-gateway-id", "Values": [id_]}]
    for found in api.pages("ec2", region, "describe_internet_gateways", "InternetGateways", Filters=wanted):
        for attachment in found.get("Attachments", []):
            vpc = attachment["VpcId"]
            _until_let_go(
                region,
                id_,
                lambda vpc=vpc: _call(  # type: ignore[misc]
                    "ec2", region, "detach_internet_gateway", gone=gone, InternetGatewayId=id_, VpcId=vpc
                ),
            )
    _call("ec2", region, "delete_internet_gateway", gone=gone, InternetGatewayId=id_)


def lustre(region: str, id_: str) -> None:
    """Without a last backup, which would go on to bill."""
    gone = ("FileSystemNotFound",)
    _call("fsx", region, "delete_file_system", gone=gone, FileSystemId=id_)
    _until(
        f"file system {id_} in {region}",
        lambda: all(
            each["FileSystemId"] != id_ for each in api.pages("fsx", region, "describe_file_systems", "FileSystems")
        ),
    )


def efs(region: str, id_: str) -> None:
    targets = list(_mount_targets(region, id_))
    for target in targets:
        _call("efs", region, "delete_mount_target", gone=("MountTargetNotFound",), MountTargetId=target)
    _until(f"mount targets of {id_} in {region}", lambda: not list(_mount_targets(region, id_)))
    gone = ("FileSystemNotFound",)
    _until_let_go(region, id_, lambda: _call("efs", region, "delete_file_system", gone=gone, FileSystemId=id_))


def bucket(region: str, name: str) -> None:
    """With all objects, their versions, and uploads that were never completed (they bill too)."""
    gone = ("NoSuchBucket", "NoSuchUpload")
    s3 = api.client("s3", region)
    try:
        for page in s3.get_paginator("list_object_versions").paginate(Bucket=name):
            found = [*page.get("Versions", []), *page.get("DeleteMarkers", [])]
            objects = [{"Key": each["Key"], "VersionId": each["VersionId"]} for each in found]
            if objects:
                answer = s3.delete_objects(Bucket=name, Delete={"Objects": objects, "Quiet": True})
                if errors := answer.get("Errors"):
                    raise ProviderError(f"bucket {name}: {errors[0].get('Key')}: {errors[0].get('Message')}")
        for page in s3.get_paginator("list_multipart_uploads").paginate(Bucket=name):
            for upload in page.get("Uploads", []):
                s3.abort_multipart_upload(Bucket=name, Key=upload["Key"], UploadId=upload["UploadId"])
        s3.delete_bucket(Bucket=name)
    except api.FAILURES as error:
        if api.code_of(error) not in gone:
            raise api.translated(error, where=f"bucket {name}") from None


def role(region: str, name: str) -> None:
    """The role with its policy, and the instance profile of the same name."""
    gone = ("NoSuchEntity",)
    _call("iam", region, "remove_role_from_instance_profile", gone=gone, InstanceProfileName=name, RoleName=name)
    _call("iam", region, "delete_instance_profile", gone=gone, InstanceProfileName=name)
    for policy in _role_policies(region, name):
        _call("iam", region, "delete_role_policy", gone=gone, RoleName=name, PolicyName=policy)
    _call("iam", region, "delete_role", gone=gone, RoleName=name)


def _role_policies(region: str, name: str) -> list[str]:
    try:
        return [str(each) for each in api.client("iam", region).list_role_policies(RoleName=name)["PolicyNames"]]
    except api.FAILURES as error:
        if api.code_of(error) == "NoSuchEntity":
            return []
        raise api.translated(error, where=f"role {name}") from None


def _mount_targets(region: str, file_system: str) -> Iterable[str]:
    try:
        answer = api.client("efs", region).describe_mount_targets(FileSystemId=file_system)
    except api.FAILURES as error:
        if api.code_of(error) == "FileSystemNotFound":
            return []
        raise api.translated(error, where=f"file system {file_system}") from None
    return [target["MountTargetId"] for target in answer["MountTargets"]]


def _call(service: str, region: str, operation: str, *, gone: tuple[str, ...], **parameters: object) -> None:
    """One call; `gone` are the codes that mean that there is nothing to do."""
    try:
        getattr(api.client(service, region), operation)(**parameters)
    except api.FAILURES as error:
        if api.code_of(error) not in gone:
            raise _Refused(error, where=f"{operation} {', '.join(map(str, parameters.values()))} in {region}") from None


class _Refused(ProviderError):
    """A refusal that still knows AWS's code."""

    def __init__(self, error: Exception, *, where: str) -> None:
        super().__init__(str(api.translated(error, where=where)))
        self.code = api.code_of(error)


def _until_let_go(region: str, id_: str, call: Callable[[], None]) -> None:
    """`call`, again and again while AWS says that something uses it."""
    patience = _Patience()
    while True:
        try:
            return call()
        except _Refused as error:
            if not any(word in error.code for word in _IN_USE):
                raise
            refused = error
        if patience.is_over():
            holders = _holders(region, id_)
            raise ProviderError(
                f"{id_} in {region} is held by {holders or 'something else'} still ({refused}): "
                f"{'' if holders else 'look in the console of AWS what uses it, '}end that, and run "
                "`make destroy` again"
            )
        if patience.should_say():
            print(
                f"waiting for AWS: {id_} in {region} is held by {_holders(region, id_) or 'something else'} still",
                file=sys.stderr,
                flush=True,
            )
        time.sleep(_LOOK_EVERY_S)


def _holders(region: str, id_: str) -> str:
    """The ids of what uses a group, a subnet or a network, as far as AWS shows it."""
    found = []
    for operation, key, name, filter_ in _HOLDERS.get(id_.partition("-")[0], ()):
        asked = [{"Name": filter_, "Values": [id_]}]
        with contextlib.suppress(ProviderError):  # no right to ask: then the console tells
            for each in api.pages("ec2", region, operation, key, Filters=asked):
                # A VPC's own group goes with it, and one that only names itself holds nothing.
                if each[name] != id_ and each.get("GroupName") != "default":
                    found.append(str(each[name]))
    return ", ".join(dict.fromkeys(found))


def _until(what: str, gone: Callable[[], bool]) -> None:
    patience = _Patience()
    while not gone():
        if patience.is_over():
            raise ProviderError(f"{what} was told to end and hasn't in {WAIT_S:.0f} s: run `make destroy` again")
        if patience.should_say():
            print(f"waiting for AWS: {what} hasn't ended yet", file=sys.stderr, flush=True)
        time.sleep(_LOOK_EVERY_S)


class _Patience:
    """How long one thing is waited for, and when the waiting is told of."""

    def __init__(self) -> None:
        self._end = time.monotonic() + WAIT_S
        self._next_word = time.monotonic() + _SAY_EVERY_S

    def is_over(self) -> bool:
        return time.monotonic() >= self._end

    def should_say(self) -> bool:
        if time.monotonic() < self._next_word:
            return False
        self._next_word += _SAY_EVERY_S
        return True
