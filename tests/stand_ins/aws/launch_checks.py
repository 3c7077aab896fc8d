"""What EC2 refuses in a RunInstances, as far as it is documented: pure checks of one request against moto's stores.

Rejects: unknown type, image, key, subnet, group, placement group; groups and subnets of different VPCs; an interface
layout that the type's network cards can't hold (from AWS's own DescribeInstanceTypes data in moto); efa-only as the
primary interface; a public address with several interfaces; contradictory market, metadata and shutdown options; user
data over 16 KiB. Can't: images for another architecture, encrypted volumes' keys, throughput and IOPS limits,
placement rules between instances, addresses running out.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPES

from tests.stand_ins.aws.backends import all_subnets
from tests.stand_ins.aws.refusals import Refused
from tests.stand_ins.aws.state import STATE

METADATA_TAG_KEY = re.compile(r"[0-9a-zA-Z\-_+=,.@:]{1,255}")
MARKETS = ("spot", "capacity-block", "interruptible-capacity-reservation", "on-demand")


def market(params: dict[str, Any]) -> str:
    return str((params.get("InstanceMarketOptions") or {}).get("MarketType") or "on-demand")


def zone_of(backend: Any, region: str, params: dict[str, Any]) -> str:
    """Where the instances will be: the subnet's zone, or the placement's, or the region's first."""
    subnets = _subnet_ids(params)
    if subnets:
        return str(backend.get_subnet(subnets[0]).availability_zone)
    return str((params.get("Placement") or {}).get("AvailabilityZone") or f"{region}a")


def check(backend: Any, region: str, params: dict[str, Any]) -> None:
    """Raise Refused when EC2 would refuse the request whatever the capacity."""
    if int(params.get("MinCount") or 0) < 1 or int(params.get("MaxCount") or 0) < int(params["MinCount"]):
        raise _value("MinCount must be at least 1 and at most MaxCount.")
    _image(backend, params)
    kind = params.get("InstanceType", "m1.small")
    params["InstanceType"] = kind
    if kind not in INSTANCE_TYPES:
        raise _value(f"Invalid value '{kind}' for InstanceType.")
    key = params.get("KeyName")
    if key is not None and key not in backend.key_pairs:
        raise Refused("InvalidKeyPair.NotFound", f"The key pair '{key}' does not exist")
    _market(params)
    _metadata(params)
    shutdown = params.get("InstanceInitiatedShutdownBehavior", "stop")
    if shutdown not in ("stop", "terminate"):
        raise _value(f"Value ({shutdown}) for parameter instanceInitiatedShutdownBehavior is invalid.")
    if len(base64.b64decode(params.get("UserData") or "")) > 16 * 1024:
        raise _value("User data is limited to 16384 bytes")
    _interfaces(kind, params)
    _places(backend, region, params)


def _value(message: str) -> Refused:
    return Refused("InvalidParameterValue", message)


def _combination(message: str) -> Refused:
    return Refused("InvalidParameterCombination", message)


def _image(backend: Any, params: dict[str, Any]) -> None:
    image = params.get("ImageId")
    if not image:
        raise Refused("MissingParameter", "The request must contain the parameter ImageId")
    if not re.fullmatch(r"ami-[0-9a-f]{8,17}", image):
        raise Refused("InvalidAMIID.Malformed", f'Invalid id: "{image}" (expecting "ami-...")')
    if image not in backend.amis:
        raise Refused("InvalidAMIID.NotFound", f"The image id '[{image}]' does not exist")


def _market(params: dict[str, Any]) -> None:
    options = params.get("InstanceMarketOptions") or {}
    how, spot = market(params), options.get("SpotOptions")
    if how not in MARKETS:
        raise _value(f"Value ({how}) for parameter marketType is invalid.")
    if spot and how != "spot":
        raise _combination("SpotOptions may only be given with the MarketType spot.")
    target = (params.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget") or {}
    if how == "capacity-block" and not target.get("CapacityReservationId"):
        raise _combination("The MarketType capacity-block needs a CapacityReservationId as the target.")
    if how != "spot" or not spot:
        return
    if target.get("CapacityReservationId"):
        raise _combination("A Spot Instance can't run in a capacity reservation.")
    kind = spot.get("SpotInstanceType", "one-time")
    ending = spot.get("InstanceInterruptionBehavior", "terminate")
    if kind not in ("one-time", "persistent") or ending not in ("terminate", "stop", "hibernate"):
        raise _value(f"Invalid SpotOptions: {kind}, {ending}")
    if kind == "one-time" and ending != "terminate":
        raise _combination(f"The InterruptionBehavior {ending} is only supported for persistent Spot requests.")
    if kind == "one-time" and spot.get("ValidUntil"):
        raise _combination("ValidUntil is only supported for persistent Spot requests.")
    price = spot.get("MaxPrice")
    if price is not None and not re.fullmatch(r"\d+(\.\d+)?", str(price)):
        raise _value(f"Invalid value '{price}' for MaxPrice")


def _metadata(params: dict[str, Any]) -> None:
    options = params.get("MetadataOptions") or {}
    allowed = {
        "HttpTokens": ("optional", "required"),
        "HttpEndpoint": ("enabled", "disabled"),
        "HttpProtocolIpv6": ("enabled", "disabled"),
        "InstanceMetadataTags": ("enabled", "disabled"),
    }
    for name, values in allowed.items():
        if options.get(name) not in (None, *values):
            raise _value(f"Value ({options[name]}) for parameter {name} is invalid.")
    hops = options.get("HttpPutResponseHopLimit")
    if hops is not None and not 1 <= int(hops) <= 64:
        raise _value(f"Value ({hops}) for parameter HttpPutResponseHopLimit is invalid: 1 to 64.")
    if options.get("InstanceMetadataTags") != "enabled":
        return
    for specification in params.get("TagSpecifications") or []:
        for tag in specification.get("Tags") or []:
            key = tag["Key"]
            if specification.get("ResourceType") == "instance" and (
                not METADATA_TAG_KEY.fullmatch(key) or key in (".", "..", "_index")
            ):
                raise _value(
                    f"'{key}' is not a valid tag key. Tag keys must match pattern ([0-9a-zA-Z\\-_+=,.@:]{{1,255}}), "
                    "and must not be a reserved name ('.', '..', '_index')"
                )


def _interfaces(kind: str, params: dict[str, Any]) -> None:
    interfaces = params.get("NetworkInterfaces") or []
    if not interfaces:
        return
    for name, what in (("SubnetId", "subnet ID"), ("SecurityGroupIds", "security groups")):
        if params.get(name):
            raise _combination(
                f"Network interfaces and an instance-level {what} may not be specified on the same request"
            )
    network = INSTANCE_TYPES[kind]["NetworkInfo"]
    cards = {card["NetworkCardIndex"]: card for card in network["NetworkCards"]}
    slots = Counter((int(each.get("NetworkCardIndex") or 0), int(each["DeviceIndex"])) for each in interfaces)
    double = [slot for slot, number in slots.items() if number > 1]
    if double:
        raise _value(f"Network card {double[0][0]}, device index {double[0][1]} is given more than once.")
    if (0, 0) not in slots:
        raise _value("A primary network interface (network card 0, device index 0) is needed.")
    if len(interfaces) > 1 and any(each.get("AssociatePublicIpAddress") for each in interfaces):
        raise _combination(
            "The associatePublicIPAddress parameter cannot be specified when launching with "
            "multiple network interfaces."
        )
    efa = 0
    for each in interfaces:
        card, device = int(each.get("NetworkCardIndex") or 0), int(each["DeviceIndex"])
        interface = each.get("InterfaceType") or "interface"
        if card not in cards:
            raise _value(f"Network card index {card} exceeds the number of network cards of {kind} ({len(cards)}).")
        if interface not in ("interface", "efa", "efa-only"):
            raise _value(f"Value ({interface}) for parameter interfaceType is invalid.")
        if interface not in cards[card].get("InterfaceTypes", ["interface"]):
            raise Refused("Unsupported", f"{interface} interfaces are not supported on network card {card} of {kind}.")
        if interface == "efa-only":
            if (card, device) == (0, 0):
                raise _combination("An efa-only network interface can't be the primary network interface.")
            if each.get("PrivateIpAddress") or each.get("AssociatePublicIpAddress") or each.get("Ipv6AddressCount"):
                raise _combination("An efa-only network interface can't have an IP address.")
        efa += interface.startswith("efa")
    most = (network.get("EfaInfo") or {}).get("MaximumEfaInterfaces", 0)
    if efa > most:
        raise Refused("AttachmentLimitExceeded", f"{kind} can have {most} EFA interfaces, not {efa}.")
    for card, number in Counter(card for card, _ in slots).items():
        holds = cards[card]["MaximumNetworkInterfaces"]
        if number > holds:
            raise Refused("AttachmentLimitExceeded", f"Network card {card} of {kind} holds {holds}, not {number}.")
    if int(params["MaxCount"]) > 1 and any("NetworkInterfaceId" in each for each in interfaces):
        raise _combination("A network interface that exists can't be given to more than one instance.")


def _subnet_ids(params: dict[str, Any]) -> list[str]:
    interfaces = params.get("NetworkInterfaces") or []
    return [each["SubnetId"] for each in [params, *interfaces] if each.get("SubnetId")]


def _places(backend: Any, region: str, params: dict[str, Any]) -> None:
    known = {subnet.id: subnet for subnet in all_subnets(backend)}
    subnets = _subnet_ids(params)
    for each in subnets:
        if each not in known:
            raise Refused("InvalidSubnetID.NotFound", f"The subnet ID '{each}' does not exist")
    if len({known[each].availability_zone for each in subnets}) > 1:
        raise _value("All network interfaces must be in subnets of one Availability Zone.")
    placement = params.get("Placement") or {}
    zone = placement.get("AvailabilityZone")
    if zone and subnets and known[subnets[0]].availability_zone != zone:
        raise _value(f"The subnet {subnets[0]} is not in the Availability Zone {zone}.")
    if zone and not zone.startswith(region):
        raise _value(f"Invalid availability zone: [{zone}]")
    group = placement.get("GroupName")
    if group and (region, group) not in STATE.placement_groups:
        raise Refused("InvalidPlacementGroup.Unknown", f"The Placement Group '{group}' is unknown.")
    groups = [*(params.get("SecurityGroupIds") or [])]
    for each in params.get("NetworkInterfaces") or []:
        groups += each.get("Groups") or []
    for each in groups:
        found = backend.get_security_group_from_id(each)
        if found is None:
            raise Refused("InvalidGroup.NotFound", f"The security group '{each}' does not exist")
        if subnets and found.vpc_id != known[subnets[0]].vpc_id:
            raise Refused(
                "InvalidParameter", f"Security group {each} and subnet {subnets[0]} belong to different networks."
            )
