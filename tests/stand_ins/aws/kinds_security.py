"""The plug-in's resource types for security groups and their rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.stand_ins.aws.resources import (
    ACCOUNT,
    Aws,
    Inputs,
    Kind,
    adopt,
    described,
    poll,
    quietly,
    specification,
    tag_ec2,
)

Tags = dict[str, str]
RULE_INPUTS = (
    "cidrIpv4",
    "cidrIpv6",
    "prefixListId",
    "referencedSecurityGroupId",
    "fromPort",
    "toPort",
    "ipProtocol",
    "description",
)


def _create_group(aws: Aws, inputs: Inputs, tags: Tags) -> str:
    answer = aws.ec2(
        "create_security_group",
        GroupName=inputs["name"],
        Description=inputs.get("description") or "Managed by Pulumi",
        VpcId=inputs.get("vpcId"),
        TagSpecifications=specification("security-group", tags),
    )
    return str(answer["GroupId"])


def _settle_group(aws: Aws, group: str, inputs: Inputs) -> None:
    """The provider takes away the rule that lets everything out, then adds the inline ones."""
    found: list[dict[str, Any] | None] = []

    def visible() -> bool:
        found.append(described(aws, "describe_security_groups", "GroupIds", "SecurityGroups", group))
        return found[-1] is not None

    poll(group, visible)
    item = found[-1] or {}
    if item.get("IpPermissionsEgress"):
        aws.ec2("revoke_security_group_egress", GroupId=group, IpPermissions=item["IpPermissionsEgress"])
    for name, operation in (
        ("ingress", "authorize_security_group_ingress"),
        ("egress", "authorize_security_group_egress"),
    ):
        rules = [_inline(group, rule) for rule in inputs.get(name, [])]
        if rules:
            aws.ec2(operation, GroupId=group, IpPermissions=rules)


def _inline(group: str, rule: Inputs) -> dict[str, Any]:
    told = {"Description": rule["description"]} if rule.get("description") else {}
    groups = [*rule.get("securityGroups", []), *([group] if rule.get("self") else [])]
    wanted: dict[str, Any] = {"IpProtocol": rule["protocol"]}
    if rule["protocol"] != "-1":
        wanted |= {"FromPort": int(rule["fromPort"]), "ToPort": int(rule["toPort"])}
    if rule.get("cidrBlocks"):
        wanted["IpRanges"] = [{"CidrIp": each, **told} for each in rule["cidrBlocks"]]
    if rule.get("ipv6CidrBlocks"):
        wanted["Ipv6Ranges"] = [{"CidrIpv6": each, **told} for each in rule["ipv6CidrBlocks"]]
    if groups:
        wanted["UserIdGroupPairs"] = [{"GroupId": each, **told} for each in groups]
    return wanted


def _read_group(aws: Aws, group: str, _: Inputs) -> dict[str, Any] | None:
    item = described(aws, "describe_security_groups", "GroupIds", "SecurityGroups", group)
    if item is None:
        return None
    return {**adopt(item), "name": item["GroupName"], "arn": aws.arn(f"security-group/{group}")}


def _delete_group(aws: Aws, group: str, state: Inputs) -> None:
    if state.get("revokeRulesOnDelete"):
        item = described(aws, "describe_security_groups", "GroupIds", "SecurityGroups", group) or {}
        for name, operation in (("IpPermissions", "ingress"), ("IpPermissionsEgress", "egress")):
            if item.get(name):
                aws.ec2(f"revoke_security_group_{operation}", GroupId=group, IpPermissions=item[name])
    quietly(lambda: aws.ec2("delete_security_group", GroupId=group))


def _create_rule(direction: str) -> Callable[[Aws, Inputs, Tags], str]:
    def create(aws: Aws, inputs: Inputs, tags: Tags) -> str:
        told = {"Description": inputs["description"]} if inputs.get("description") else {}
        wanted: dict[str, Any] = {"IpProtocol": inputs["ipProtocol"]}
        wanted |= {"FromPort": int(inputs["fromPort"])} if inputs.get("fromPort") is not None else {}
        wanted |= {"ToPort": int(inputs["toPort"])} if inputs.get("toPort") is not None else {}
        sources = {
            "cidrIpv4": ("IpRanges", "CidrIp"),
            "cidrIpv6": ("Ipv6Ranges", "CidrIpv6"),
            "prefixListId": ("PrefixListIds", "PrefixListId"),
            "referencedSecurityGroupId": ("UserIdGroupPairs", "GroupId"),
        }
        given = [name for name in sources if inputs.get(name)]
        if len(given) != 1:
            raise ValueError(f"exactly one of {', '.join(sources)} is needed, not {given or 'none'}")
        name, member = sources[given[0]]
        wanted[name] = [{member: inputs[given[0]], **told}]
        answer = aws.ec2(
            f"authorize_security_group_{direction}",
            GroupId=inputs["securityGroupId"],
            IpPermissions=[wanted],
            TagSpecifications=specification("security-group-rule", tags),
        )
        return str(answer["SecurityGroupRules"][0]["SecurityGroupRuleId"])

    return create


def _read_rule(aws: Aws, rule: str, _: Inputs) -> dict[str, Any] | None:
    item = described(aws, "describe_security_group_rules", "SecurityGroupRuleIds", "SecurityGroupRules", rule)
    if item is None:
        return None
    arn = f"arn:aws:ec2:{aws.region}:{ACCOUNT}:security-group-rule/{rule}"
    return {"securityGroupRuleId": rule, "arn": arn, "tagsAll": adopt({"Tags": item.get("Tags", [])})["tagsAll"]}


def _delete_rule(direction: str) -> Callable[[Aws, str, Inputs], None]:
    def delete(aws: Aws, rule: str, state: Inputs) -> None:
        quietly(
            lambda: aws.ec2(
                f"revoke_security_group_{direction}", GroupId=state["securityGroupId"], SecurityGroupRuleIds=[rule]
            )
        )

    return delete


def _rule(direction: str) -> Kind:
    # The real provider changes a rule in place; here every change makes another, which a plan shows differently.
    return Kind(
        create=_create_rule(direction),
        read=_read_rule,
        delete=_delete_rule(direction),
        replace=frozenset({"securityGroupId", *RULE_INPUTS}),
        tag=tag_ec2,
    )


KINDS = {
    "aws:ec2/securityGroup:SecurityGroup": Kind(
        create=_create_group,
        settle=_settle_group,
        read=_read_group,
        delete=_delete_group,
        replace=frozenset({"name", "namePrefix", "description", "vpcId"}),
        state_only=frozenset({"revokeRulesOnDelete"}),
        tag=tag_ec2,
        auto_name="name",
    ),
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": _rule("ingress"),
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": _rule("egress"),
}
