"""The plug-in's resource types of IAM: roles, their policies, instance profiles."""

from __future__ import annotations

import json
from typing import Any

from botocore.exceptions import ClientError

from tests.stand_ins.aws.resources import Aws, Inputs, Kind, is_gone, pairs, quietly, unpaired

Tags = dict[str, str]


def _iam(aws: Aws, operation: str, **arguments: Any) -> dict[str, Any]:
    return aws.call("iam", operation, **arguments)


def _found(aws: Aws, operation: str, **arguments: Any) -> dict[str, Any] | None:
    try:
        return _iam(aws, operation, **arguments)
    except ClientError as error:
        if is_gone(error):
            return None
        raise


def _text(policy: Any) -> str:
    return policy if isinstance(policy, str) else json.dumps(policy)


def _create_role(aws: Aws, inputs: Inputs, tags: Tags) -> str:
    _iam(
        aws,
        "create_role",
        RoleName=inputs["name"],
        AssumeRolePolicyDocument=_text(inputs["assumeRolePolicy"]),
        Path=inputs.get("path"),
        Description=inputs.get("description"),
        MaxSessionDuration=inputs.get("maxSessionDuration"),
        PermissionsBoundary=inputs.get("permissionsBoundary"),
        Tags=pairs(tags) or None,
    )
    return str(inputs["name"])


def _settle_role(aws: Aws, role: str, inputs: Inputs) -> None:
    for arn in inputs.get("managedPolicyArns", []):
        _iam(aws, "attach_role_policy", RoleName=role, PolicyArn=arn)
    for policy in inputs.get("inlinePolicies", []):
        _iam(aws, "put_role_policy", RoleName=role, PolicyName=policy["name"], PolicyDocument=_text(policy["policy"]))


def _read_role(aws: Aws, role: str, _: Inputs) -> dict[str, Any] | None:
    answer = _found(aws, "get_role", RoleName=role)
    if answer is None:
        return None
    item = answer["Role"]
    return {
        "arn": item["Arn"],
        "uniqueId": item["RoleId"],
        "path": item["Path"],
        "createDate": item["CreateDate"].isoformat(),
        "tagsAll": unpaired(item.get("Tags")),
    }


def _delete_role(aws: Aws, role: str, state: Inputs) -> None:
    attached = _found(aws, "list_attached_role_policies", RoleName=role)
    if attached is None:
        return
    for each in attached["AttachedPolicies"]:
        if state.get("forceDetachPolicies") or each["PolicyArn"] in (state.get("managedPolicyArns") or []):
            _iam(aws, "detach_role_policy", RoleName=role, PolicyArn=each["PolicyArn"])
    own = {each["name"] for each in state.get("inlinePolicies") or []}
    for name in _iam(aws, "list_role_policies", RoleName=role)["PolicyNames"]:
        if state.get("forceDetachPolicies") or name in own:
            _iam(aws, "delete_role_policy", RoleName=role, PolicyName=name)
    quietly(lambda: _iam(aws, "delete_role", RoleName=role))


def _trust(aws: Aws, role: str, _: Inputs, inputs: Inputs) -> None:
    _iam(aws, "update_assume_role_policy", RoleName=role, PolicyDocument=_text(inputs["assumeRolePolicy"]))


def _tag_role(aws: Aws, role: str, old: Tags, new: Tags) -> None:
    dropped = [key for key in old if key not in new]
    if dropped:
        _iam(aws, "untag_role", RoleName=role, TagKeys=dropped)
    if new:
        _iam(aws, "tag_role", RoleName=role, Tags=pairs(new))


def _create_role_policy(aws: Aws, inputs: Inputs, _: Tags) -> str:
    document = _text(inputs["policy"])
    _iam(aws, "put_role_policy", RoleName=inputs["role"], PolicyName=inputs["name"], PolicyDocument=document)
    return f"{inputs['role']}:{inputs['name']}"


def _read_role_policy(aws: Aws, policy: str, _: Inputs) -> dict[str, Any] | None:
    role, name = policy.split(":", 1)
    answer = _found(aws, "get_role_policy", RoleName=role, PolicyName=name)
    return None if answer is None else {"name": name, "role": role}


def _delete_role_policy(aws: Aws, policy: str, _: Inputs) -> None:
    role, name = policy.split(":", 1)
    quietly(lambda: _iam(aws, "delete_role_policy", RoleName=role, PolicyName=name))


def _create_profile(aws: Aws, inputs: Inputs, tags: Tags) -> str:
    name, path = inputs["name"], inputs.get("path")
    _iam(aws, "create_instance_profile", InstanceProfileName=name, Path=path, Tags=pairs(tags) or None)
    return str(name)


def _settle_profile(aws: Aws, profile: str, inputs: Inputs) -> None:
    if inputs.get("role"):
        _iam(aws, "add_role_to_instance_profile", InstanceProfileName=profile, RoleName=inputs["role"])


def _read_profile(aws: Aws, profile: str, _: Inputs) -> dict[str, Any] | None:
    answer = _found(aws, "get_instance_profile", InstanceProfileName=profile)
    if answer is None:
        return None
    item = answer["InstanceProfile"]
    return {
        "arn": item["Arn"],
        "uniqueId": item["InstanceProfileId"],
        "path": item["Path"],
        "createDate": item["CreateDate"].isoformat(),
        "tagsAll": unpaired(item.get("Tags")),
    }


def _delete_profile(aws: Aws, profile: str, _: Inputs) -> None:
    answer = _found(aws, "get_instance_profile", InstanceProfileName=profile)
    for role in (answer or {"InstanceProfile": {"Roles": []}})["InstanceProfile"]["Roles"]:
        _iam(aws, "remove_role_from_instance_profile", InstanceProfileName=profile, RoleName=role["RoleName"])
    quietly(lambda: _iam(aws, "delete_instance_profile", InstanceProfileName=profile))


def _tag_profile(aws: Aws, profile: str, old: Tags, new: Tags) -> None:
    dropped = [key for key in old if key not in new]
    if dropped:
        _iam(aws, "untag_instance_profile", InstanceProfileName=profile, TagKeys=dropped)
    if new:
        _iam(aws, "tag_instance_profile", InstanceProfileName=profile, Tags=pairs(new))


KINDS = {
    "aws:iam/role:Role": Kind(
        create=_create_role,
        settle=_settle_role,
        read=_read_role,
        delete=_delete_role,
        replace=frozenset({"name", "namePrefix", "path"}),
        updates={"assumeRolePolicy": _trust},
        state_only=frozenset({"forceDetachPolicies"}),
        tag=_tag_role,
        auto_name="name",
        longest_name=64,
    ),
    "aws:iam/rolePolicy:RolePolicy": Kind(
        create=_create_role_policy,
        read=_read_role_policy,
        delete=_delete_role_policy,
        replace=frozenset({"name", "namePrefix", "role"}),
        updates={"policy": lambda aws, _, __, new: _create_role_policy(aws, new, {}) and None},
        auto_name="name",
        longest_name=128,
    ),
    "aws:iam/instanceProfile:InstanceProfile": Kind(
        create=_create_profile,
        settle=_settle_profile,
        read=_read_profile,
        delete=_delete_profile,
        replace=frozenset({"name", "namePrefix", "path"}),
        tag=_tag_profile,
        auto_name="name",
        longest_name=128,
    ),
}
