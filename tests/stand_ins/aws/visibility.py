"""Eventual consistency on order: what was just created is missing from the next n Describe answers; slow endings.

Only EC2's resources, by their own id. A Describe that names a hidden id gets "NotFound", one that lists leaves it out.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from tests.stand_ins.aws import launch
from tests.stand_ins.aws.state import STATE, AwsError, Call

Answer = tuple[str, list[tuple[str, str]], bytes]
# Describe operation -> parameter with ids, tag of the id in an item, code for "not found"
DESCRIBES = {
    "DescribeInstances": ("InstanceIds", "instanceId", "InvalidInstanceID.NotFound"),
    "DescribeInstanceStatus": ("InstanceIds", "instanceId", "InvalidInstanceID.NotFound"),
    "DescribeVpcs": ("VpcIds", "vpcId", "InvalidVpcID.NotFound"),
    "DescribeSubnets": ("SubnetIds", "subnetId", "InvalidSubnetID.NotFound"),
    "DescribeSecurityGroups": ("GroupIds", "groupId", "InvalidGroup.NotFound"),
    "DescribeSecurityGroupRules": (
        "SecurityGroupRuleIds",
        "securityGroupRuleId",
        "InvalidSecurityGroupRuleId.NotFound",
    ),
    "DescribeInternetGateways": ("InternetGatewayIds", "internetGatewayId", "InvalidInternetGatewayID.NotFound"),
    "DescribeNatGateways": ("NatGatewayIds", "natGatewayId", "NatGatewayNotFound"),
    "DescribeRouteTables": ("RouteTableIds", "routeTableId", "InvalidRouteTableID.NotFound"),
    "DescribeAddresses": ("AllocationIds", "allocationId", "InvalidAllocationID.NotFound"),
    "DescribeNetworkInterfaces": ("NetworkInterfaceIds", "networkInterfaceId", "InvalidNetworkInterfaceID.NotFound"),
    "DescribeVolumes": ("VolumeIds", "volumeId", "InvalidVolume.NotFound"),
    "DescribePlacementGroups": ("GroupIds", "groupId", "InvalidPlacementGroup.Unknown"),
    "DescribeLaunchTemplates": ("LaunchTemplateIds", "launchTemplateId", "InvalidLaunchTemplateId.NotFound"),
    "DescribeCapacityReservations": (
        "CapacityReservationIds",
        "capacityReservationId",
        "InvalidCapacityReservationId.NotFound",
    ),
    "DescribeVpcEndpoints": ("VpcEndpointIds", "vpcEndpointId", "InvalidVpcEndpointId.NotFound"),
}
# Create operation -> tag of the new id in its answer
CREATES = {
    "RunInstances": "instanceId",
    "CreateVpc": "vpcId",
    "CreateSubnet": "subnetId",
    "CreateSecurityGroup": "groupId",
    "AuthorizeSecurityGroupIngress": "securityGroupRuleId",
    "AuthorizeSecurityGroupEgress": "securityGroupRuleId",
    "CreateInternetGateway": "internetGatewayId",
    "CreateNatGateway": "natGatewayId",
    "CreateRouteTable": "routeTableId",
    "AllocateAddress": "allocationId",
    "CreateNetworkInterface": "networkInterfaceId",
    "CreatePlacementGroup": "groupId",
    "CreateLaunchTemplate": "launchTemplateId",
    "CreateCapacityReservation": "capacityReservationId",
    "CreateVpcEndpoint": "vpcEndpointId",
}


def before(call: Call) -> None:
    """Count the Describe calls that pass; refuse one that names what is still hidden."""
    if call.operation == "DescribeInstances":
        launch.one_describe_nearer_to_the_end(call.region)
    described = DESCRIBES.get(call.operation) if call.service == "ec2" else None
    if described is None or not STATE.hidden:
        return
    parameter, _, code = described
    named = [each for each in call.params.get(parameter) or [] if each in STATE.hidden]
    if named:
        _count(named)
        raise AwsError(code, f"The ID '{named[0]}' does not exist")


def after(call: Call, answer: Answer) -> Answer:
    """Note what is to be hidden; leave what is hidden out of a list."""
    status, headers, body = answer
    if call.service != "ec2":
        return answer
    describes = STATE.invisible.get(call.operation, 0)
    if describes and call.operation in CREATES:
        tag = CREATES[call.operation]
        for each in re.findall(rf"<{tag}>([^<]+)</{tag}>", body.decode()):
            STATE.hidden[each] = describes
        return answer
    if call.operation in DESCRIBES and STATE.hidden:
        return status, headers, _without_hidden(body, DESCRIBES[call.operation][1])
    return answer


def _without_hidden(body: bytes, tag: str) -> bytes:
    root = ElementTree.fromstring(body)  # noqa: S314  (our own answer)
    space = root.tag.split("}")[0] + "}" if root.tag.startswith("{") else ""
    if space:
        ElementTree.register_namespace("", space[1:-1])
    seen = []
    for parent in root.iter():
        for item in list(parent):
            found = item.find(f"{space}{tag}")
            if found is not None and found.text in STATE.hidden:
                seen.append(found.text)
                parent.remove(item)
    for parent in list(root.iter(f"{space}reservationSet")):
        for reservation in list(parent):
            instances = reservation.find(f"{space}instancesSet")
            if instances is not None and len(instances) == 0:
                parent.remove(reservation)
    _count([each for each in seen if each])
    return ElementTree.tostring(root, encoding="utf-8")


def _count(ids: list[str]) -> None:
    for each in set(ids):
        STATE.hidden[each] -= 1
        if STATE.hidden[each] <= 0:
            del STATE.hidden[each]
