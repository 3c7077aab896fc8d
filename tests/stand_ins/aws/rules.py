"""What AWS refuses and moto doesn't: tags and names over the limits, and deleting what is still in use.

Rejects: more than 50 tags, keys of 0 or over 128 characters or starting with "aws:", values over 256; characters in
tags that IAM, EFS, FSx and S3 refuse (EC2 takes any); names over each service's length or with its forbidden
characters; deleting a subnet, a group, a VPC, a placement group, a gateway, an address or an interface that is in use.
Can't: service limits on the number of VPCs, addresses or gateways, and everything that IAM policies would forbid.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests.stand_ins.aws.backends import all_groups, all_subnets, ec2, live_endpoints, live_instances, live_nat_gateways
from tests.stand_ins.aws.state import STATE, AwsError, Call

MAX_TAGS = 50
TAG_CHARACTERS = re.compile(r"[\w\s.:/=+\-@]*")
GROUP_NAME = re.compile(r"[a-zA-Z0-9 ._\-:/()#,@\[\]+=&;{}!$*]*")
IAM_NAME = re.compile(r"[\w+=,.@-]+", re.ASCII)
TEMPLATE_NAME = re.compile(r"[a-zA-Z0-9().\-/_]{3,128}")
BUCKET_NAME = re.compile(r"(?!xn--|.*-s3alias$|\d+\.\d+\.\d+\.\d+$)[a-z0-9](?:[a-z0-9-]|\.(?!\.)){1,61}[a-z0-9]")
# service -> code for too many tags, code for a bad one
TAG_CODES = {
    "ec2": ("TagLimitExceeded", "InvalidParameterValue"),
    "iam": ("LimitExceeded", "ValidationError"),
    "s3": ("BadRequest", "InvalidTag"),
    "efs": ("ValidationException", "ValidationException"),
    "fsx": ("BadRequest", "BadRequest"),
}


def check(call: Call) -> None:
    """Raise AwsError when AWS would refuse `call` by its form or because of what depends on its object."""
    for tags in _tag_lists(call):
        check_tags(call.service, tags)
    if call.operation == "CreateTags":
        _check_number_of_tags(call)
    name_rule = NAMES.get((call.service, call.operation))
    if name_rule is not None:
        name_rule(call.params)
    if call.service == "ec2" and call.operation in IN_USE:
        IN_USE[call.operation](ec2(call.region), call.params)


# -- tags -----------------------------------------------------------------------------------------------------------


def _tag_lists(call: Call) -> Iterator[list[dict[str, str]]]:
    params = call.params
    if call.operation.startswith("Untag") or call.operation == "DeleteTags":
        return
    for name in ("Tags", "TagSet"):
        if isinstance(params.get(name), list):
            yield params[name]
    for specification in params.get("TagSpecifications") or params.get("TagSpecification") or []:
        yield specification.get("Tags") or []
    data = params.get("LaunchTemplateData") or {}
    for specification in data.get("TagSpecifications") or []:
        yield specification.get("Tags") or []


def check_tags(service: str, tags: list[dict[str, str]]) -> None:
    """Raise AwsError for tags that `service` refuses."""
    too_many, bad = TAG_CODES.get(service, ("ValidationException", "ValidationException"))
    if len(tags) > MAX_TAGS:
        raise AwsError(too_many, "The maximum number of Tags for a resource has been reached.")
    if len({tag.get("Key") for tag in tags}) < len(tags):
        raise AwsError(bad, "Duplicate tag key specified.")
    for tag in tags:
        key, value = str(tag.get("Key", "")), str(tag.get("Value") or "")
        if not 1 <= len(key) <= 128:
            raise AwsError(bad, f"Tag key '{key[:140]}' must have between 1 and 128 characters.")
        if key.lower().startswith("aws:"):
            raise AwsError(bad, f"Tag keys starting with 'aws:' are reserved for internal use: {key}")
        if len(value) > 256:
            raise AwsError(bad, f"Tag value of '{key}' exceeds the maximum length of 256 characters.")
        if service != "ec2" and not (TAG_CHARACTERS.fullmatch(key) and TAG_CHARACTERS.fullmatch(value)):
            raise AwsError(bad, f"The tag {key}={value} contains characters that are not allowed.")


def _check_number_of_tags(call: Call) -> None:
    for resource in call.params.get("Resources", []):
        here = {key for key in ec2(call.region).tags.get(resource, {}) if not key.startswith("aws:")}
        if len(here | {tag["Key"] for tag in call.params.get("Tags", [])}) > MAX_TAGS:
            raise AwsError("TagLimitExceeded", "The maximum number of Tags for a resource has been reached.")


# -- names ----------------------------------------------------------------------------------------------------------


def _invalid(parameter: str, value: str, why: str) -> AwsError:
    return AwsError("InvalidParameterValue", f"Value ({value[:80]}) for parameter {parameter} is invalid. {why}")


def _security_group(params: dict[str, Any]) -> None:
    for parameter, value in (("GroupName", params.get("GroupName", "")), ("GroupDescription", params["Description"])):
        if not value.isascii():
            raise _invalid(parameter, value, "Character sets beyond ASCII are not supported.")
        if not 1 <= len(value) <= 255 or not GROUP_NAME.fullmatch(value):
            raise _invalid(parameter, value, "Up to 255 of: a-z, A-Z, 0-9, spaces, and ._-:/()#,@[]+=&;{}!$*")
    if params["GroupName"].startswith("sg-"):
        raise _invalid("GroupName", params["GroupName"], "Group names may not be in the format sg-*")


def _ascii_255(parameter: str, params: dict[str, Any]) -> None:
    value = params.get(parameter, "")
    if not value.isascii() or not 1 <= len(value) <= 255 or value != value.strip():
        raise _invalid(parameter, value, "Up to 255 ASCII characters, without leading or trailing spaces.")


def _template(params: dict[str, Any]) -> None:
    if not TEMPLATE_NAME.fullmatch(params.get("LaunchTemplateName", "")):
        raise AwsError(
            "InvalidLaunchTemplateName.MalformedException",
            "A launch template name must be between 3 and 128 characters, and may contain letters, numbers, and ().-/_",
        )


def _iam(parameter: str, longest: int, params: dict[str, Any]) -> None:
    value = params.get(parameter, "")
    if len(value) > longest or not IAM_NAME.fullmatch(value):
        raise AwsError(
            "ValidationError",
            f"1 validation error detected: Value at '{parameter[0].lower()}{parameter[1:]}' failed to satisfy "
            f"constraint: Member must have length between 1 and {longest} and match [\\w+=,.@-]+",
        )


def _bucket(params: dict[str, Any]) -> None:
    name = params.get("Bucket", "")
    if not 3 <= len(name) <= 63 or not BUCKET_NAME.fullmatch(name):
        raise AwsError("InvalidBucketName", f"The specified bucket is not valid: {name[:80]}")


NAMES = {
    ("ec2", "CreateSecurityGroup"): _security_group,
    ("ec2", "CreatePlacementGroup"): lambda params: _ascii_255("GroupName", params),
    ("ec2", "ImportKeyPair"): lambda params: _ascii_255("KeyName", params),
    ("ec2", "CreateKeyPair"): lambda params: _ascii_255("KeyName", params),
    ("ec2", "CreateLaunchTemplate"): _template,
    ("iam", "CreateRole"): lambda params: _iam("RoleName", 64, params),
    ("iam", "PutRolePolicy"): lambda params: _iam("PolicyName", 128, params),
    ("iam", "CreateInstanceProfile"): lambda params: _iam("InstanceProfileName", 128, params),
    ("s3", "CreateBucket"): _bucket,
}

# -- in use ---------------------------------------------------------------------------------------------------------


def _depends(message: str) -> AwsError:
    return AwsError("DependencyViolation", message)


def _subnet(backend: Any, params: dict[str, Any]) -> None:
    subnet = params["SubnetId"]
    interfaces = [eni.id for eni in backend.enis.values() if eni.subnet.id == subnet]
    instances = [each.id for each in live_instances(backend) if each.subnet_id == subnet]
    gateways = [each.id for each in live_nat_gateways(backend) if each.subnet_id == subnet]
    if interfaces or instances or gateways:
        raise _depends(f"The subnet '{subnet}' has dependencies and cannot be deleted.")


def _group(backend: Any, params: dict[str, Any]) -> None:
    name = params.get("GroupId") or params.get("GroupName")
    group = next((each for each in all_groups(backend) if name in (each.id, each.name)), None)
    if group is None:
        return
    if group.name == "default":
        raise AwsError("CannotDelete", f'the specified group: "{group.id}" name: "default" cannot be deleted by a user')
    interfaces = [eni for eni in backend.enis.values() if any(each.id == group.id for each in eni.group_set)]
    instances = [each for each in live_instances(backend) if any(g.id == group.id for g in each.security_groups)]
    endpoints = [each for each in live_endpoints(backend) if group.id in (each.security_group_ids or [])]
    referring = [
        other
        for other in all_groups(backend)
        if other.id != group.id
        and any(
            (rule.source_group or {}).get("GroupId") == group.id for rule in [*other.ingress_rules, *other.egress_rules]
        )
    ]
    if interfaces or instances or endpoints or referring:
        raise _depends(f"resource {group.id} has a dependent object")


def _vpc(backend: Any, params: dict[str, Any]) -> None:
    vpc = params["VpcId"]
    holders = [each for each in all_subnets(backend) if each.vpc_id == vpc]
    holders += [each for each in backend.internet_gateways.values() if each.vpc and each.vpc.id == vpc]
    holders += [each for each in backend.groups.get(vpc, {}).values() if each.name != "default"]
    holders += [each for each in live_nat_gateways(backend) if each.vpc_id == vpc]
    holders += [each for each in live_endpoints(backend) if each.vpc_id == vpc]
    if holders:
        raise _depends(f"The vpc '{vpc}' has dependencies and cannot be deleted.")


def _detach_gateway(backend: Any, params: dict[str, Any]) -> None:
    vpc = params["VpcId"]
    if any(eni.public_ip for eni in backend.enis.values() if eni.subnet.vpc_id == vpc):
        raise _depends(
            f"Network {vpc} has some mapped public address(es). "
            "Please unmap those public address(es) before detaching the gateway."
        )


def _address(backend: Any, params: dict[str, Any]) -> None:
    found = [each for each in backend.addresses if each.allocation_id == params.get("AllocationId")]
    if found and (found[0].association_id or found[0].eni or found[0].instance):
        raise AwsError("InvalidIPAddress.InUse", f"Address {found[0].public_ip} is in use.")


def _gateway_s_address(backend: Any, params: dict[str, Any]) -> None:
    found = [each for each in backend.addresses if each.allocation_id == params.get("AllocationId")]
    if found and (found[0].association_id or found[0].eni or found[0].instance):
        # Before moto, which would have made the gateway's interface by then.
        raise AwsError("Resource.AlreadyAssociated", f"Resource {found[0].public_ip} is already associated.")


def _interface(backend: Any, params: dict[str, Any]) -> None:
    eni = backend.enis.get(params["NetworkInterfaceId"])
    if eni is not None and (eni.attachment_id or any(n._eni is eni for n in live_nat_gateways(backend))):
        raise AwsError("InvalidParameterValue", f"Network interface '{eni.id}' is currently in use.")


def _placement_group(backend: Any, params: dict[str, Any]) -> None:
    name = params["GroupName"]
    if any(each.placement.group_name == name for each in live_instances(backend)):
        raise AwsError("InvalidPlacementGroup.InUse", f"The placement group '{name}' is in use and may not be deleted.")
    if any(
        held["PlacementGroupArn"].endswith(f"/{name}") and held["State"] == "active"
        for held in STATE.reservations.values()
        if held.get("PlacementGroupArn")
    ):
        raise AwsError("InvalidPlacementGroup.InUse", f"The placement group '{name}' is in use and may not be deleted.")


IN_USE = {
    "CreateNatGateway": _gateway_s_address,
    "DeleteSubnet": _subnet,
    "DeleteSecurityGroup": _group,
    "DeleteVpc": _vpc,
    "DetachInternetGateway": _detach_gateway,
    "ReleaseAddress": _address,
    "DeleteNetworkInterface": _interface,
    "DeletePlacementGroup": _placement_group,
}
