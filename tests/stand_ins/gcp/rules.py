"""What Compute refuses besides what the discovery document says: common rules, and those of everything but instances.

Each rule names its source: [doc] Google's reference or guide, [facts] shared/facts/providers*.md, where a rule that is
only remembered is marked [mem]. A rule takes the `World`, the request's project and the body, and completes the body
with what Compute adds.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Protocol

from tests.stand_ins.gcp import catalogue
from tests.stand_ins.gcp.errors import GcpError, invalid, required
from tests.stand_ins.gcp.store import Body, Store, link, path_of

NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_PORTS = re.compile(r"\d{1,5}(-\d{1,5})?")
_PROTOCOLS = {"tcp", "udp", "icmp", "esp", "ah", "sctp", "ipip", "all"}


class World(Protocol):
    store: Store

    def offers(self, machine_type: str, zone: str) -> bool: ...


def name(body: Body) -> None:
    """RFC 1035, up to 63 [doc]."""
    if not body.get("name"):
        raise required("resource.name")
    if not NAME.fullmatch(body["name"]):
        raise invalid("resource.name", body["name"], "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'")


def labels(given: dict[str, str] | None, where: str = "resource.labels") -> None:
    """[doc: labelling resources]: 64 of them; without the international letters that Google also takes."""
    given = given or {}
    if len(given) > 64:
        raise invalid(where, len(given), "A resource can have at most 64 labels.")
    for key, value in given.items():
        if not re.fullmatch(r"[a-z][_a-z0-9-]{0,62}", key):
            raise invalid(where, key, f"The label key '{key}' must be a match of regex '[a-z][_a-z0-9-]{{0,62}}'")
        if not re.fullmatch(r"[_a-z0-9-]{0,63}", value):
            raise invalid(where, value, f"The label value '{value}' must be a match of regex '[_a-z0-9-]{{0,63}}'")


def profile_of(network: Body) -> str | None:
    """The zone of an RDMA network's profile; None for an ordinary network."""
    profile = str(network.get("networkProfile", "")).rpartition("/")[2]
    return profile.removesuffix("-vpc-roce") if profile else None


def subnet_range(text: str | None, where: str) -> ipaddress.IPv4Network:
    if not text:
        raise required(where)
    try:
        return ipaddress.IPv4Network(text)
    except ValueError:
        raise invalid(where, text, "Must be a CIDR address range.") from None


def network(world: World, project: str, scope: str, body: Body) -> None:
    del world, scope
    if "autoCreateSubnetworks" not in body:
        # Without it Compute would make a legacy network, which it no longer does [doc].
        raise invalid("resource.IPv4Range", "", "Legacy networks can no longer be created.")
    if body["autoCreateSubnetworks"]:
        raise GcpError(400, "notImplementedByStandIn", "The stand-in for GCP makes networks in custom mode only")
    if not 1300 <= body.setdefault("mtu", 1460) <= 8896:  # [doc]
        raise invalid("resource.mtu", body["mtu"], "Must be between 1300 and 8896, inclusive.")
    if body.get("networkProfile"):
        path = path_of(body["networkProfile"], project)
        zone = path.rpartition("/")[2].removesuffix("-vpc-roce")
        if zone not in catalogue.ROCE_ZONES or "/global/networkProfiles/" not in path:
            raise invalid("resource.networkProfile", body["networkProfile"], "The referenced profile cannot be found.")
        body["networkProfile"] = link(path)
        if body["mtu"] == 1460:
            body["mtu"] = 8896
        if body["mtu"] != 8896:  # [facts GCP 3]
            raise invalid("resource.mtu", body["mtu"], "Network profile only allows MTU 8896.")
    body.setdefault("routingConfig", {"routingMode": "REGIONAL"})


def subnetwork(world: World, project: str, scope: str, body: Body) -> None:
    path, net = _network(world, project, body)
    region = scope.partition("/")[2]
    zone = profile_of(net)
    if zone is not None and catalogue.region_of(zone) != region:  # the sentence: [facts 2, dstack]
        raise GcpError(
            400,
            "invalid",
            f"Invalid value for field 'resource.region': '{region}'. Network profile only allows resource creation in "
            f"location {zone}.",
        )
    own = subnet_range(body.get("ipCidrRange"), "resource.ipCidrRange")
    if own.prefixlen > 29 or own.prefixlen < 4:
        raise invalid("resource.ipCidrRange", own, "The prefix length must be between 4 and 29.")
    for _, other in world.store.of("subnetworks", project):
        if other["network"] == link(path) and own.overlaps(ipaddress.IPv4Network(other["ipCidrRange"])):
            raise invalid(
                "resource.ipCidrRange",
                own,
                f"Invalid IPCidrRange: {own} conflicts with existing subnetwork '{other['name']}' in region "
                f"'{other['region'].rpartition('/')[2]}'.",
            )
    body["gatewayAddress"] = str(own.network_address + 1)
    body.setdefault("privateIpGoogleAccess", False)
    body.setdefault("purpose", "PRIVATE")
    body.setdefault("stackType", "IPV4_ONLY")


def firewall(world: World, project: str, scope: str, body: Body) -> None:
    del scope
    _, net = _network(world, project, body)
    if profile_of(net) is not None:  # [facts GCP 3: allowVpcFirewallRules is off in the RoCE profile]
        raise invalid("resource.network", body["network"], "Network profile does not allow VPC firewall rules.")
    if bool(body.get("allowed")) == bool(body.get("denied")):
        raise invalid("resource", "", "Exactly one of 'allowed' or 'denied' must be specified.")
    for index, rule in enumerate(body.get("allowed") or body.get("denied") or []):
        _rule(rule, f"resource.allowed[{index}]")
    if body.setdefault("direction", "INGRESS") == "INGRESS":
        if body.get("destinationRanges") and not body.get("sourceRanges"):
            raise invalid("resource.destinationRanges", body["destinationRanges"], "Needs a source for ingress.")
        if not any(body.get(key) for key in ("sourceRanges", "sourceTags", "sourceServiceAccounts")):
            body["sourceRanges"] = ["0.0.0.0/0"]
    elif any(body.get(key) for key in ("sourceTags", "sourceServiceAccounts")):
        raise invalid("resource.direction", "EGRESS", "Source tags can't be used with EGRESS.")
    for key in ("sourceRanges", "destinationRanges"):
        for each in body.get(key, []):
            try:
                ipaddress.ip_network(each)
            except ValueError:
                raise invalid(f"resource.{key}", each, "Must be a CIDR address range.") from None
    for key in ("sourceTags", "targetTags"):
        for tag in body.get(key, []):
            if not NAME.fullmatch(tag):
                raise invalid(f"resource.{key}", tag, "Must be a match of the regex of a tag.")
    if not 0 <= body.setdefault("priority", 1000) <= 65535:
        raise invalid("resource.priority", body["priority"], "Must be between 0 and 65535.")
    body.setdefault("disabled", False)


def _rule(rule: Body, where: str) -> None:
    protocol = str(rule.get("IPProtocol") or "").lower()
    if not protocol:
        raise required(f"{where}.IPProtocol")
    if protocol not in _PROTOCOLS and not (protocol.isdigit() and int(protocol) < 256):
        raise invalid(f"{where}.IPProtocol", protocol, "Must be a well known protocol or its number.")
    if rule.get("ports") and protocol not in ("tcp", "udp", "sctp", "6", "17", "132"):
        raise invalid(f"{where}.ports", rule["ports"], "Ports may only be specified for tcp, udp and sctp.")
    for port in rule.get("ports", []):
        ends = [int(end) for end in port.split("-")] if _PORTS.fullmatch(port) else []
        if not ends or ends != sorted(ends) or ends[-1] > 65535:
            raise invalid(f"{where}.ports", port, "Must be a port or a range of ports.")


def router(world: World, project: str, scope: str, body: Body) -> None:
    path, net = _network(world, project, body)
    seen: set[str] = set()
    for index, nat in enumerate(body.get("nats", [])):
        where = f"resource.nats[{index}]"
        if profile_of(net) is not None:
            raise invalid(where, "", "Network profile does not allow Cloud NAT.")
        _nat(world, project, nat, where)
        if nat["name"] in seen:
            raise invalid(f"{where}.name", nat["name"], "Duplicate name.")
        seen.add(nat["name"])
        for other, other_body in world.store.of("routers", project):
            taken = other_body["network"] == link(path) and other.startswith(f"projects/{project}/{scope}/")
            if taken and other_body["name"] != body.get("name") and other_body.get("nats"):
                raise invalid(where, nat["name"], "The subnetworks' ranges are already NATed by another gateway.")


def _nat(world: World, project: str, nat: Body, where: str) -> None:
    for key in ("name", "natIpAllocateOption", "sourceSubnetworkIpRangesToNat"):
        if not nat.get(key):
            raise required(f"{where}.{key}")
    manual = nat["natIpAllocateOption"] == "MANUAL_ONLY"
    if manual != bool(nat.get("natIps")):
        raise invalid(f"{where}.natIps", nat.get("natIps"), "NAT IPs are for MANUAL_ONLY, which needs some.")
    listed = nat["sourceSubnetworkIpRangesToNat"] == "LIST_OF_SUBNETWORKS"
    if listed != bool(nat.get("subnetworks")):
        raise invalid(f"{where}.subnetworks", "", "Subnetworks are for LIST_OF_SUBNETWORKS, which needs some.")
    for each in nat.get("subnetworks", []):
        each["name"] = link(world.store.refer(each.get("name", ""), project, "subnetworks", f"{where}.subnetworks")[0])
    nat["natIps"] = [
        link(world.store.refer(each, project, "addresses", f"{where}.natIps")[0]) for each in nat.get("natIps", [])
    ]
    if not nat["natIps"]:
        del nat["natIps"]


def address(world: World, project: str, scope: str, body: Body) -> None:
    del scope
    kind = body.setdefault("addressType", "EXTERNAL")
    if kind == "INTERNAL":
        if not body.get("subnetwork"):
            raise required("resource.subnetwork")
        path, _ = world.store.refer(body["subnetwork"], project, "subnetworks", "resource.subnetwork")
        body["subnetwork"] = link(path)
    elif body.get("subnetwork") or body.get("address"):
        raise invalid("resource.address", body.get("address"), "An external address is chosen by Compute.")
    if kind == "EXTERNAL":
        body.setdefault("networkTier", "PREMIUM")
    body["status"] = "RESERVED"


def resource_policy(world: World, project: str, scope: str, body: Body) -> None:
    del world, project, scope
    kinds = [key for key in body if key.endswith("Policy")]
    if len(kinds) != 1:
        raise invalid("resource", ", ".join(kinds), "Exactly one policy must be specified.")
    placement = body.get("groupPlacementPolicy")
    if placement is None:
        return
    count = placement.get("vmCount")
    if count is not None and not 1 <= count <= 1500:
        raise invalid("resource.groupPlacementPolicy.vmCount", count, "Must be between 1 and 1500.")
    if placement.get("collocation") != "COLLOCATED" and not placement.get("availabilityDomainCount"):
        raise invalid("resource.groupPlacementPolicy", placement, "Collocation or availability domains are needed.")


def reservation(world: World, project: str, scope: str, body: Body) -> None:
    del project
    zone = scope.partition("/")[2]
    specific = body.get("specificReservation") or {}
    if not int(specific.get("count") or 0):
        raise required("resource.specificReservation.count")
    machine = (specific.get("instanceProperties") or {}).get("machineType")
    if not machine:
        raise required("resource.specificReservation.instanceProperties.machineType")
    if not world.offers(machine.rpartition("/")[2], zone):
        raise invalid("resource.specificReservation.instanceProperties.machineType", machine, "It does not exist.")
    if body.get("deleteAtTime") and body.get("deleteAfterDuration"):
        raise invalid("resource.deleteAtTime", body["deleteAtTime"], "Only one way to end may be specified.")
    body["status"] = "READY"
    specific["inUseCount"] = "0"


def disk(world: World, project: str, scope: str, body: Body) -> None:
    del project
    zone = scope.partition("/")[2]
    image = find_image(body["sourceImage"], "resource.sourceImage") if body.get("sourceImage") else None
    least = int(image["diskSizeGb"]) if image else 0
    if not body.get("sizeGb") and image is None and not body.get("sourceSnapshot"):
        raise required("resource.sizeGb")
    size = int(body.get("sizeGb") or least)
    if size < max(least, 1) or size > 65536:
        raise invalid("resource.sizeGb", size, f"Must be between {max(least, 1)} and 65536 GB.")
    body["sizeGb"] = str(size)
    kind = str(body.get("type") or "pd-standard").rpartition("/")[2]
    if kind not in DISK_TYPES:
        raise invalid("resource.type", kind, "The referenced diskType resource cannot be found.")
    body["type"] = f"https://www.googleapis.com/compute/v1/projects/{catalogue.PROJECT}/zones/{zone}/diskTypes/{kind}"
    if image:
        body["sourceImage"] = image["selfLink"]
    body["status"] = "READY"
    del world


DISK_TYPES = (
    "pd-standard",
    "pd-balanced",
    "pd-ssd",
    "pd-extreme",
    "hyperdisk-balanced",
    "hyperdisk-extreme",
    "hyperdisk-throughput",
    "hyperdisk-ml",
)


def images() -> list[Body]:
    """Every public image that this double knows."""
    return [
        {
            "kind": "compute#image",
            "id": str(7_000_000 + index),
            "name": own_name,
            "family": family,
            "diskSizeGb": str(size),
            "architecture": architecture,
            "status": "READY",
            "creationTimestamp": "2026-05-22T00:00:00.000-00:00",
            "selfLink": link(f"projects/{project}/global/images/{own_name}"),
        }
        for index, (project, own_name, family, size, architecture) in enumerate(catalogue.IMAGES)
    ]


def find_image(value: str, where: str) -> Body:
    """By projects/P/global/images/NAME or .../images/family/FAMILY."""
    path = path_of(value, catalogue.PROJECT)
    for image in images():
        own = image["selfLink"].partition("compute/v1/")[2]
        if path in (own, f"{own.rpartition('/')[0]}/family/{image['family']}"):
            return image
    raise invalid(where, value, "The referenced image resource cannot be found.")


def _network(world: World, project: str, body: Body) -> tuple[str, Body]:
    if not body.get("network"):
        raise required("resource.network")
    path, net = world.store.refer(body["network"], project, "networks", "resource.network")
    body["network"] = link(path)
    return path, net


Rule = Callable[[World, str, str, Body], None]
RULES: dict[str, Rule] = {
    "networks": network,
    "subnetworks": subnetwork,
    "firewalls": firewall,
    "routers": router,
    "addresses": address,
    "resourcePolicies": resource_policy,
    "reservations": reservation,
    "disks": disk,
}
