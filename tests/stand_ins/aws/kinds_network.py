"""The plug-in's resource types of a network."""

from __future__ import annotations

import zlib
from typing import Any

from botocore.exceptions import ClientError

from tests.stand_ins.aws.resources import (
    Aws,
    Inputs,
    Kind,
    adopt,
    code,
    described,
    poll,
    quietly,
    request,
    specification,
    tag_ec2,
)

Tags = dict[str, str]

# -- VPC and subnets ------------------------------------------------------------------------------------------------


def _create_vpc(aws: Aws, inputs: Inputs, tags: Tags) -> str:
    own = {key: inputs[key] for key in ("cidrBlock", "instanceTenancy") if key in inputs}
    wanted = request(aws, "ec2", "create_vpc", own)
    if inputs.get("assignGeneratedIpv6CidrBlock"):
        wanted["AmazonProvidedIpv6CidrBlock"] = True
    return str(aws.ec2("create_vpc", **wanted, TagSpecifications=specification("vpc", tags))["Vpc"]["VpcId"])


def _dns(aws: Aws, vpc: str, _: Inputs, inputs: Inputs) -> None:
    for key, parameter in (("enableDnsSupport", "EnableDnsSupport"), ("enableDnsHostnames", "EnableDnsHostnames")):
        if key in inputs:
            aws.ec2("modify_vpc_attribute", VpcId=vpc, **{parameter: {"Value": inputs[key]}})


def _read_vpc(aws: Aws, vpc: str, _: Inputs) -> dict[str, Any] | None:
    item = described(aws, "describe_vpcs", "VpcIds", "Vpcs", vpc)
    if item is None:
        return None
    here = [{"Name": "vpc-id", "Values": [vpc]}]
    main = aws.ec2("describe_route_tables", Filters=[*here, {"Name": "association.main", "Values": ["true"]}])[
        "RouteTables"
    ]
    group = aws.ec2("describe_security_groups", Filters=[*here, {"Name": "group-name", "Values": ["default"]}])
    acl = aws.ec2("describe_network_acls", Filters=[*here, {"Name": "default", "Values": ["true"]}])["NetworkAcls"]
    return {
        **adopt(item),
        "arn": aws.arn(f"vpc/{vpc}"),
        "mainRouteTableId": main[0]["RouteTableId"] if main else None,
        "defaultRouteTableId": main[0]["RouteTableId"] if main else None,
        "defaultSecurityGroupId": group["SecurityGroups"][0]["GroupId"] if group["SecurityGroups"] else None,
        "defaultNetworkAclId": acl[0]["NetworkAclId"] if acl else None,
        "enableDnsSupport": aws.ec2("describe_vpc_attribute", VpcId=vpc, Attribute="enableDnsSupport")[
            "EnableDnsSupport"
        ]["Value"],
        "enableDnsHostnames": aws.ec2("describe_vpc_attribute", VpcId=vpc, Attribute="enableDnsHostnames")[
            "EnableDnsHostnames"
        ]["Value"],
    }


def _create_subnet(aws: Aws, inputs: Inputs, tags: Tags) -> str:
    later = frozenset({"mapPublicIpOnLaunch", "assignIpv6AddressOnCreation", "tags", "region"})
    wanted = request(aws, "ec2", "create_subnet", inputs, without=later)
    answer = aws.ec2("create_subnet", **wanted, TagSpecifications=specification("subnet", tags))
    return str(answer["Subnet"]["SubnetId"])


def _public(aws: Aws, subnet: str, _: Inputs, inputs: Inputs) -> None:
    for key, name in (
        ("mapPublicIpOnLaunch", "MapPublicIpOnLaunch"),
        ("assignIpv6AddressOnCreation", "AssignIpv6AddressOnCreation"),
    ):
        if key in inputs:
            aws.ec2("modify_subnet_attribute", SubnetId=subnet, **{name: {"Value": inputs[key]}})


def _read_subnet(aws: Aws, subnet: str, _: Inputs) -> dict[str, Any] | None:
    item = described(aws, "describe_subnets", "SubnetIds", "Subnets", subnet)
    return None if item is None else {**adopt(item), "arn": aws.arn(f"subnet/{subnet}")}


# -- gateways and addresses -----------------------------------------------------------------------------------------


def _create_igw(aws: Aws, _: Inputs, tags: Tags) -> str:
    answer = aws.ec2("create_internet_gateway", TagSpecifications=specification("internet-gateway", tags))
    return str(answer["InternetGateway"]["InternetGatewayId"])


def _attach_igw(aws: Aws, gateway: str, inputs: Inputs) -> None:
    if inputs.get("vpcId"):
        aws.ec2("attach_internet_gateway", InternetGatewayId=gateway, VpcId=inputs["vpcId"])


def _read_igw(aws: Aws, gateway: str, _: Inputs) -> dict[str, Any] | None:
    item = described(aws, "describe_internet_gateways", "InternetGatewayIds", "InternetGateways", gateway)
    if item is None:
        return None
    attached = [each["VpcId"] for each in item.get("Attachments", [])]
    vpc = attached[0] if attached else None
    return {**adopt(item), "vpcId": vpc, "arn": aws.arn(f"internet-gateway/{gateway}")}


def _delete_igw(aws: Aws, gateway: str, state: Inputs) -> None:
    now = _read_igw(aws, gateway, state)
    if now is not None and now["vpcId"]:
        aws.ec2("detach_internet_gateway", InternetGatewayId=gateway, VpcId=now["vpcId"])
    quietly(lambda: aws.ec2("delete_internet_gateway", InternetGatewayId=gateway))


def _create_eip(aws: Aws, inputs: Inputs, tags: Tags) -> str:
    without = frozenset({"tags", "region", "instance", "networkInterface", "associateWithPrivateIp"})
    wanted = request(aws, "ec2", "allocate_address", inputs, without=without)
    answer = aws.ec2("allocate_address", **wanted, TagSpecifications=specification("elastic-ip", tags))
    return str(answer["AllocationId"])


def _associate_eip(aws: Aws, eip: str, inputs: Inputs) -> None:
    if inputs.get("instance") or inputs.get("networkInterface"):
        aws.ec2(
            "associate_address",
            AllocationId=eip,
            InstanceId=inputs.get("instance"),
            NetworkInterfaceId=inputs.get("networkInterface"),
            PrivateIpAddress=inputs.get("associateWithPrivateIp"),
        )


def _read_eip(aws: Aws, eip: str, _: Inputs) -> dict[str, Any] | None:
    item = described(aws, "describe_addresses", "AllocationIds", "Addresses", eip)
    if item is None:
        return None
    return {**adopt(item), "arn": aws.arn(f"elastic-ip/{eip}"), "privateIp": item.get("PrivateIpAddress")}


def _delete_eip(aws: Aws, eip: str, state: Inputs) -> None:
    now = _read_eip(aws, eip, state)
    if now is not None and now.get("associationId") and (state.get("instance") or state.get("networkInterface")):
        quietly(lambda: aws.ec2("disassociate_address", AssociationId=now["associationId"]))
    quietly(lambda: aws.ec2("release_address", AllocationId=eip))


def _create_association(aws: Aws, inputs: Inputs, _: Tags) -> str:
    return str(aws.ec2("associate_address", **request(aws, "ec2", "associate_address", inputs))["AssociationId"])


def _read_association(aws: Aws, association: str, _: Inputs) -> dict[str, Any] | None:
    by = [{"Name": "association-id", "Values": [association]}]
    item = described(aws, "describe_addresses", "Filters", "Addresses", by)
    return None if item is None else {key: value for key, value in adopt(item).items() if key != "tagsAll"}


def _create_nat(aws: Aws, inputs: Inputs, tags: Tags) -> str:
    wanted = request(aws, "ec2", "create_nat_gateway", inputs)
    answer = aws.ec2("create_nat_gateway", **wanted, TagSpecifications=specification("natgateway", tags))
    return str(answer["NatGateway"]["NatGatewayId"])


def _read_nat(aws: Aws, nat: str, _: Inputs) -> dict[str, Any] | None:
    item = described(aws, "describe_nat_gateways", "NatGatewayIds", "NatGateways", nat)
    if item is None or item["State"] in ("deleted", "deleting"):
        return None
    address = (item.get("NatGatewayAddresses") or [{}])[0]
    own = {key: value for key, value in adopt(item).items() if key != "routeTableId"}
    return {**own, **{key: value for key, value in adopt(address).items() if key != "isPrimary"}}


def _await_nat(aws: Aws, nat: str, _: Inputs) -> None:
    def available() -> bool:
        item = described(aws, "describe_nat_gateways", "NatGatewayIds", "NatGateways", nat)
        if item is not None and item["State"] == "failed":
            raise RuntimeError(f"{nat}: {item.get('FailureMessage')}")
        return item is not None and item["State"] == "available"

    poll(nat, available)


def _delete_nat(aws: Aws, nat: str, state: Inputs) -> None:
    quietly(lambda: aws.ec2("delete_nat_gateway", NatGatewayId=nat))
    poll(nat, lambda: _read_nat(aws, nat, state) is None)


# -- routes ---------------------------------------------------------------------------------------------------------


def _create_table(aws: Aws, inputs: Inputs, tags: Tags) -> str:
    answer = aws.ec2("create_route_table", VpcId=inputs["vpcId"], TagSpecifications=specification("route-table", tags))
    return str(answer["RouteTable"]["RouteTableId"])


def _inline_routes(aws: Aws, table: str, inputs: Inputs) -> None:
    for route in inputs.get("routes", []):
        named = {"destinationCidrBlock" if key == "cidrBlock" else key: value for key, value in route.items()}
        aws.ec2("create_route", **request(aws, "ec2", "create_route", {**named, "routeTableId": table}))


def _read_table(aws: Aws, table: str, _: Inputs) -> dict[str, Any] | None:
    item = described(aws, "describe_route_tables", "RouteTableIds", "RouteTables", table)
    return None if item is None else {**adopt(item), "arn": aws.arn(f"route-table/{table}")}


def _create_table_association(aws: Aws, inputs: Inputs, _: Tags) -> str:
    wanted = request(aws, "ec2", "associate_route_table", inputs)
    return str(aws.ec2("associate_route_table", **wanted)["AssociationId"])


def _read_table_association(aws: Aws, association: str, _: Inputs) -> dict[str, Any] | None:
    by = [{"Name": "association.route-table-association-id", "Values": [association]}]
    item = described(aws, "describe_route_tables", "Filters", "RouteTables", by)
    return None if item is None else {"routeTableId": item["RouteTableId"]}


def _create_route(aws: Aws, inputs: Inputs, _: Tags) -> str:
    aws.ec2("create_route", **request(aws, "ec2", "create_route", inputs))
    return f"r-{inputs['routeTableId']}{zlib.crc32(_destination(inputs).encode())}"


def _destination(inputs: Inputs) -> str:
    names = ("destinationCidrBlock", "destinationIpv6CidrBlock", "destinationPrefixListId")
    return str(next(inputs[name] for name in names if inputs.get(name)))


def _read_route(aws: Aws, _: str, state: Inputs) -> dict[str, Any] | None:
    item = described(aws, "describe_route_tables", "RouteTableIds", "RouteTables", state["routeTableId"])
    for route in (item or {}).get("Routes", []):
        if _destination(state) in route.values():
            return {"state": route.get("State", "active"), "origin": route.get("Origin", "CreateRoute")}
    return None


def _delete_route(aws: Aws, _: str, state: Inputs) -> None:
    own = {key: value for key, value in state.items() if key.startswith("destination") and value}
    wanted = request(aws, "ec2", "delete_route", {"routeTableId": state["routeTableId"], **own})
    try:
        aws.ec2("delete_route", **wanted)
    except ClientError as error:
        if code(error) not in ("InvalidRoute.NotFound", "InvalidRouteTableID.NotFound"):
            raise


def _replace_route(aws: Aws, _: str, __: Inputs, inputs: Inputs) -> None:
    aws.ec2("replace_route", **request(aws, "ec2", "replace_route", inputs))


# -- endpoints ------------------------------------------------------------------------------------------------------


def _create_endpoint(aws: Aws, inputs: Inputs, tags: Tags) -> str:
    wanted = request(aws, "ec2", "create_vpc_endpoint", inputs, without=frozenset({"tags", "region", "autoAccept"}))
    answer = aws.ec2("create_vpc_endpoint", **wanted, TagSpecifications=specification("vpc-endpoint", tags))
    return str(answer["VpcEndpoint"]["VpcEndpointId"])


def _read_endpoint(aws: Aws, endpoint: str, _: Inputs) -> dict[str, Any] | None:
    item = described(aws, "describe_vpc_endpoints", "VpcEndpointIds", "VpcEndpoints", endpoint)
    if item is None or item["State"].lower() in ("deleted", "deleting"):
        return None
    return {**adopt(item), "state": item["State"].lower(), "arn": aws.arn(f"vpc-endpoint/{endpoint}")}


def _delete_endpoint(aws: Aws, endpoint: str, state: Inputs) -> None:
    quietly(lambda: aws.ec2("delete_vpc_endpoints", VpcEndpointIds=[endpoint]))
    poll(endpoint, lambda: _read_endpoint(aws, endpoint, state) is None)


def _by_id(operation: str, parameter: str) -> Any:
    return lambda aws, each, _: quietly(lambda: aws.ec2(operation, **{parameter: each}))


KINDS = {
    "aws:ec2/vpc:Vpc": Kind(
        create=_create_vpc,
        settle=lambda aws, vpc, inputs: _dns(aws, vpc, {}, inputs),
        read=_read_vpc,
        delete=_by_id("delete_vpc", "VpcId"),
        replace=frozenset({"cidrBlock", "instanceTenancy"}),
        updates={"enableDnsSupport": _dns, "enableDnsHostnames": _dns},
        tag=tag_ec2,
    ),
    "aws:ec2/subnet:Subnet": Kind(
        create=_create_subnet,
        settle=lambda aws, subnet, inputs: _public(aws, subnet, {}, inputs),
        read=_read_subnet,
        delete=_by_id("delete_subnet", "SubnetId"),
        replace=frozenset({"vpcId", "cidrBlock", "availabilityZone", "availabilityZoneId", "ipv6Native"}),
        updates={"mapPublicIpOnLaunch": _public, "assignIpv6AddressOnCreation": _public},
        tag=tag_ec2,
    ),
    "aws:ec2/internetGateway:InternetGateway": Kind(
        create=_create_igw, settle=_attach_igw, read=_read_igw, delete=_delete_igw, tag=tag_ec2
    ),
    "aws:ec2/eip:Eip": Kind(
        create=_create_eip,
        settle=_associate_eip,
        read=_read_eip,
        delete=_delete_eip,
        replace=frozenset({"domain", "address", "networkBorderGroup", "publicIpv4Pool"}),
        tag=tag_ec2,
    ),
    "aws:ec2/eipAssociation:EipAssociation": Kind(
        create=_create_association,
        read=_read_association,
        delete=_by_id("disassociate_address", "AssociationId"),
        replace=frozenset(
            {"allocationId", "instanceId", "networkInterfaceId", "privateIpAddress", "publicIp", "allowReassociation"}
        ),
    ),
    "aws:ec2/natGateway:NatGateway": Kind(
        create=_create_nat,
        settle=_await_nat,
        read=_read_nat,
        delete=_delete_nat,
        replace=frozenset({"subnetId", "allocationId", "connectivityType", "privateIp"}),
        tag=tag_ec2,
    ),
    "aws:ec2/routeTable:RouteTable": Kind(
        create=_create_table,
        settle=_inline_routes,
        read=_read_table,
        delete=_by_id("delete_route_table", "RouteTableId"),
        replace=frozenset({"vpcId"}),
        tag=tag_ec2,
    ),
    "aws:ec2/routeTableAssociation:RouteTableAssociation": Kind(
        create=_create_table_association,
        read=_read_table_association,
        delete=_by_id("disassociate_route_table", "AssociationId"),
        replace=frozenset({"subnetId", "gatewayId", "routeTableId"}),
    ),
    "aws:ec2/route:Route": Kind(
        create=_create_route,
        read=_read_route,
        delete=_delete_route,
        replace=frozenset(
            {"routeTableId", "destinationCidrBlock", "destinationIpv6CidrBlock", "destinationPrefixListId"}
        ),
        updates={"gatewayId": _replace_route, "natGatewayId": _replace_route, "networkInterfaceId": _replace_route},
    ),
    "aws:ec2/vpcEndpoint:VpcEndpoint": Kind(
        create=_create_endpoint,
        read=_read_endpoint,
        delete=_delete_endpoint,
        replace=frozenset({"vpcId", "serviceName", "vpcEndpointType", "serviceRegion"}),
        tag=tag_ec2,
    ),
}
