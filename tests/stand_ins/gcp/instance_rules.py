"""What Compute refuses of an instance, beyond the discovery document. Sources as in rules.py."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter

from tests.stand_ins.gcp import catalogue, rules
from tests.stand_ins.gcp.errors import GcpError, invalid, required
from tests.stand_ins.gcp.rules import World
from tests.stand_ins.gcp.store import Body, link, path_of, scope_path

_DAY_S = 86400
_RESERVATION_KEY = "compute.googleapis.com/reservation-name"
_NO_HYPERDISK = ("e2", "n1", "g2", "a2")  # hyperdisk-balanced isn't offered there [mem]


def instance(world: World, project: str, zone: str, body: Body) -> None:
    """Raise Compute's refusal, or leave the body with whole URLs."""
    machine = _machine(world, project, zone, body)
    _scheduling(machine, body)
    _placement(world, project, zone, machine, body)
    _disks(machine, zone, body)
    _interfaces(world, project, zone, machine, body)
    _reservation(world, project, zone, machine, body)
    _metadata(body)
    for tag in (body.get("tags") or {}).get("items", []):
        if not rules.NAME.fullmatch(tag):
            raise invalid("resource.tags.items", tag, "Must be a match of the regex of a tag.")
    if len(body.get("serviceAccounts", [])) > 1:
        raise invalid("resource.serviceAccounts", len(body["serviceAccounts"]), "At most one service account.")
    for account in body.get("serviceAccounts", []):
        if not account.get("email"):
            raise required("resource.serviceAccounts[0].email")


def _machine(world: World, project: str, zone: str, body: Body) -> catalogue.MachineType:
    value = body.get("machineType")
    if not value:
        raise required("resource.machineType")
    path = path_of(value, project)
    name = path.rpartition("/")[2]
    if path != f"projects/{project}/zones/{zone}/machineTypes/{name}":
        raise invalid("resource.machineType", value, "The URL is malformed, or of another zone.")
    if not world.offers(name, zone):
        raise invalid(
            "resource.machineType", value, f"Machine type with name '{name}' does not exist in zone '{zone}'."
        )
    body["machineType"] = link(path)
    machine = catalogue.MACHINE_TYPES[name]
    if body.get("guestAccelerators"):
        if machine.gpus:  # they come with the machine [facts GCP 1]
            raise invalid("resource.guestAccelerators", body["guestAccelerators"], f"{name} has its GPUs built in.")
        raise GcpError(400, "notImplementedByStandIn", "The stand-in for GCP has no GPUs for N1 machines")
    return machine


def _scheduling(machine: catalogue.MachineType, body: Body) -> None:
    plan = body.setdefault("scheduling", {})
    model = plan.setdefault("provisioningModel", "SPOT" if plan.get("preemptible") else "STANDARD")
    where = "resource.scheduling"
    spot = model == "SPOT"
    if spot and plan.get("automaticRestart") is not False:  # [doc: Spot VMs]; unset counts as true here
        raise invalid(f"{where}.automaticRestart", plan.get("automaticRestart"), "Must be false for Spot instances.")
    if spot and plan.get("onHostMaintenance") == "MIGRATE":
        raise invalid(f"{where}.onHostMaintenance", "MIGRATE", "Spot instances can't migrate.")
    if plan.get("preemptible") and not spot:
        raise invalid(f"{where}.preemptible", True, "Only with provisioningModel SPOT.")
    if spot:
        plan["preemptible"] = True
    if machine.gpus and plan.get("onHostMaintenance") != "TERMINATE":  # [doc]
        raise invalid(
            f"{where}.onHostMaintenance",
            plan.get("onHostMaintenance", "MIGRATE"),
            "Instances with guest accelerators do not support live migration.",
        )
    if model not in machine.sold:  # [facts GCP 1, providers.md 2]
        raise GcpError(400, "invalid", f"Machine type {machine.name} is not available with provisioning model {model}.")
    plan.setdefault("automaticRestart", not spot)
    plan.setdefault("onHostMaintenance", "TERMINATE" if spot else "MIGRATE")
    _end(plan, model, where)


def _end(plan: Body, model: str, where: str) -> None:
    """When and how it ends by itself [doc: limit-vm-runtime]."""
    action, duration = plan.get("instanceTerminationAction"), plan.get("maxRunDuration")
    if duration and plan.get("terminationTime"):
        raise invalid(f"{where}.terminationTime", plan["terminationTime"], "Not together with maxRunDuration.")
    limited = duration or plan.get("terminationTime")
    if limited and not action:
        raise invalid(f"{where}.instanceTerminationAction", "", "Must be specified with a limited run time.")
    if action and not limited and model != "SPOT":
        raise invalid(f"{where}.instanceTerminationAction", action, "Only for Spot or with a limited run time.")
    if duration:
        seconds = int(duration.get("seconds") or 0)
        if not 30 <= seconds <= 120 * _DAY_S:
            raise invalid(f"{where}.maxRunDuration", seconds, "Must be between 30 seconds and 120 days.")
        duration["seconds"] = str(seconds)
        if model == "FLEX_START" and seconds > 7 * _DAY_S:  # [facts GCP 6: mem]
            raise invalid(f"{where}.maxRunDuration", seconds, "Flex-start instances run for up to 7 days.")
    elif model == "FLEX_START":
        raise required(f"{where}.maxRunDuration")


def _placement(world: World, project: str, zone: str, machine: catalogue.MachineType, body: Body) -> None:
    policies = body.get("resourcePolicies") or []
    for index, value in enumerate(policies):
        where = f"resource.resourcePolicies[{index}]"
        path, policy = world.store.refer(value, project, "resourcePolicies", where)
        policies[index] = link(path)
        if not path.startswith(scope_path(project, zone) + "/"):
            raise invalid(where, value, "The resource policy is in another region.")
        if "workloadPolicy" in policy:  # [facts GCP 4: mem]
            raise invalid(where, value, "A workload policy is for managed instance groups.")
        placement = policy.get("groupPlacementPolicy")
        if placement is None:
            continue
        if machine.family == "e2":  # [mem]
            raise invalid(where, value, f"Machine type {machine.name} does not support group placement.")
        if body["scheduling"]["onHostMaintenance"] != "TERMINATE" and placement.get("collocation"):
            raise invalid("resource.scheduling.onHostMaintenance", "MIGRATE", "Compact placement needs TERMINATE.")
        _members(world, zone, path, placement, where)


def _members(world: World, zone: str, path: str, placement: Body, where: str) -> None:
    members = [other for other in world.store.users_of(path) if "/instances/" in other]
    count = placement.get("vmCount")
    if count is not None and len(members) >= count:  # fewer than vmCount can't be noticed one insert at a time
        raise invalid(where, path, f"The placement policy is for {count} instances, which it already has.")
    if placement.get("collocation") and any(f"/zones/{zone}/" not in member for member in members):  # [mem]
        raise invalid(where, path, "The placement policy's instances are in another zone.")


def _disks(machine: catalogue.MachineType, zone: str, body: Body) -> None:
    disks = body.get("disks") or []
    if sum(bool(disk.get("boot")) for disk in disks) != 1:
        raise invalid("resource.disks", len(disks), "At least one disk must be marked as boot, and one only.")
    for index, disk in enumerate(disks):
        where = f"resource.disks[{index}]"
        start = disk.get("initializeParams")
        if bool(disk.get("source")) == bool(start):
            raise invalid(where, "", "Exactly one of source and initializeParams is needed.")
        if not start:
            continue
        default = "local-ssd" if disk.get("type") == "SCRATCH" else "pd-standard"
        kind = str(start.get("diskType") or default).rpartition("/")[2]
        if (kind == "local-ssd") != (disk.get("type") == "SCRATCH"):
            raise invalid(f"{where}.initializeParams.diskType", kind, "SCRATCH and local-ssd belong together.")
        if kind == "local-ssd":
            if not disk.get("autoDelete"):
                raise invalid(f"{where}.autoDelete", False, "Scratch disks must be deleted with their instance.")
            continue
        _disk_kind(machine, kind, f"{where}.initializeParams.diskType")
        rules.labels(start.get("labels"), f"{where}.initializeParams.labels")
        if disk.get("boot") and not start.get("sourceImage"):
            raise required(f"{where}.initializeParams.sourceImage")
        if start.get("sourceImage"):
            image = rules.find_image(start["sourceImage"], f"{where}.initializeParams.sourceImage")
            start["sourceImage"] = image["selfLink"]
            size = int(start.get("diskSizeGb") or image["diskSizeGb"])
            if size < int(image["diskSizeGb"]):
                raise invalid(
                    f"{where}.initializeParams.diskSizeGb",
                    size,
                    f"Requested disk size cannot be smaller than the image size ({image['diskSizeGb']} GB)",
                )
            start["diskSizeGb"] = str(size)
        elif not start.get("diskSizeGb"):
            raise required(f"{where}.initializeParams.diskSizeGb")
        start["diskType"] = f"projects/{catalogue.PROJECT}/zones/{zone}/diskTypes/{kind}"


def _disk_kind(machine: catalogue.MachineType, kind: str, where: str) -> None:
    if kind not in rules.DISK_TYPES:
        raise invalid(where, kind, "The referenced diskType resource cannot be found.")
    if machine.rdma and kind != "hyperdisk-balanced":  # [facts GCP 11]
        raise invalid(where, kind, f"[{kind}] features are not compatible with machine type {machine.name}.")
    if kind == "hyperdisk-balanced" and machine.family in _NO_HYPERDISK:
        raise invalid(where, kind, f"[{kind}] features are not compatible with machine type {machine.name}.")


def _interfaces(world: World, project: str, zone: str, machine: catalogue.MachineType, body: Body) -> None:
    nics = body.get("networkInterfaces") or []
    if not nics:
        raise invalid("resource.networkInterfaces", "", "At least one network interface is required.")
    if len(nics) > machine.nics:
        raise invalid("resource.networkInterfaces", len(nics), f"{machine.name} takes up to {machine.nics} interfaces.")
    networks: Counter[str] = Counter()
    subnets: Counter[str] = Counter()
    for index, nic in enumerate(nics):
        where = f"resource.networkInterfaces[{index}]"
        if not nic.get("subnetwork"):
            # A custom network has no subnet by default, and this double has no other.
            raise invalid(f"{where}.subnetwork", "", "Subnetwork should be specified for custom subnetmode network")
        path, subnet = world.store.refer(nic["subnetwork"], project, "subnetworks", f"{where}.subnetwork")
        if not path.startswith(scope_path(project, zone) + "/"):
            raise invalid(f"{where}.subnetwork", nic["subnetwork"], f"It is not in the region of zone {zone}.")
        if nic.get("network") and link(path_of(nic["network"], project)) != subnet["network"]:
            raise invalid(f"{where}.network", nic["network"], "The subnetwork is of another network.")
        nic["subnetwork"], nic["network"] = link(path), subnet["network"]
        networks[nic["network"]] += 1
        subnets[nic["subnetwork"]] += 1
        net = world.store.resources[path_of(nic["network"], project)]
        _interface(machine, zone, net, nic, where)
        if networks[nic["network"]] > 1 and rules.profile_of(net) is None:  # [doc: multiple interfaces]
            raise invalid(f"{where}.network", nic["network"], "Networks must be distinct for NICs attached to a VM.")
        if subnets[nic["subnetwork"]] > 1:  # the profile allows several in a network, not in a subnet [facts GCP 3]
            raise invalid(f"{where}.subnetwork", nic["subnetwork"], "Subnetworks must be distinct for NICs of a VM.")
        _addresses(world, project, zone, subnet, nic, where)


def _interface(machine: catalogue.MachineType, zone: str, net: Body, nic: Body, where: str) -> None:
    profile, mrdma = rules.profile_of(net), nic.get("nicType") == "MRDMA"
    if (profile is not None) != mrdma:  # [facts GCP 3]
        raise invalid(f"{where}.nicType", nic.get("nicType"), "MRDMA belongs to a network with an RDMA profile only.")
    if mrdma and not machine.rdma:
        raise invalid(f"{where}.nicType", "MRDMA", f"Machine type {machine.name} has no RDMA interfaces.")
    if profile is not None and profile != zone:
        raise invalid(
            f"{where}.network", net["name"], f"Network profile only allows resource creation in location {profile}."
        )
    if mrdma and nic.get("accessConfigs"):
        raise invalid(f"{where}.accessConfigs", "", "Network profile does not allow external addresses.")
    if len(nic.get("accessConfigs", [])) > 1:
        raise invalid(f"{where}.accessConfigs", len(nic["accessConfigs"]), "At most one access config is allowed.")


def _addresses(world: World, project: str, zone: str, subnet: Body, nic: Body, where: str) -> None:
    inside = ipaddress.ip_network(subnet["ipCidrRange"])
    if nic.get("networkIP") and ipaddress.ip_address(nic["networkIP"]) not in inside:
        raise invalid(
            f"{where}.networkIP", nic["networkIP"], "Requested internal IP address is outside the subnetwork."
        )
    for config in nic.get("accessConfigs", []):
        wanted = config.get("natIP")
        if not wanted:
            continue
        found = [
            body
            for path, body in world.store.of("addresses", project)
            if path.startswith(scope_path(project, zone) + "/") and body.get("address") == wanted
        ]
        if not found:
            raise invalid(f"{where}.accessConfigs[0].natIP", wanted, "The specified external IP address was not found.")
        if found[0]["status"] == "IN_USE":
            raise invalid(f"{where}.accessConfigs[0].natIP", wanted, "The specified external IP address is in use.")


def _reservation(world: World, project: str, zone: str, machine: catalogue.MachineType, body: Body) -> None:
    affinity = body.get("reservationAffinity") or {}
    kind = affinity.get("consumeReservationType")
    model = body["scheduling"]["provisioningModel"]
    if model == "RESERVATION_BOUND" and kind != "SPECIFIC_RESERVATION":
        raise invalid("resource.reservationAffinity", kind, "RESERVATION_BOUND needs a specific reservation.")
    if model in ("SPOT", "FLEX_START") and kind in ("SPECIFIC_RESERVATION", "ANY_RESERVATION"):
        raise invalid("resource.reservationAffinity", kind, f"{model} instances can't use a reservation.")
    if kind != "SPECIFIC_RESERVATION":
        return
    values = affinity.get("values") or []
    if affinity.get("key") != _RESERVATION_KEY or len(values) != 1:
        raise invalid(
            "resource.reservationAffinity.key", affinity.get("key"), f"Must be {_RESERVATION_KEY}, one value."
        )
    name = values[0].partition("/reservationBlocks/")[0].rpartition("/")[2]
    found = world.store.resources.get(f"projects/{project}/zones/{zone}/reservations/{name}")
    if found is None:
        raise invalid("resource.reservationAffinity.values", values[0], "The reservation cannot be found.")
    specific = found["specificReservation"]
    if specific["instanceProperties"]["machineType"].rpartition("/")[2] != machine.name:
        raise invalid("resource.reservationAffinity.values", values[0], "The reservation is for another machine type.")


def _metadata(body: Body) -> None:
    """[doc: setting custom metadata]: 256 KB a value, 512 KB in all."""
    items = (body.get("metadata") or {}).get("items", [])
    names = [item.get("key", "") for item in items]
    if len(set(names)) != len(names):
        raise invalid("resource.metadata", names, "Metadata has duplicate keys.")
    total = 0
    for item in items:
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", item.get("key", "")):
            raise invalid("resource.metadata.items.key", item.get("key"), "Must be a match of '[a-zA-Z0-9-_]{1,128}'")
        size = len((item.get("value") or "").encode())
        total += size
        if size > 262144:
            raise invalid("resource.metadata.items.value", item["key"], "Value is too large: maximum size 262144.")
    if total > 524288:
        raise invalid("resource.metadata", total, "Metadata is too large: maximum size 524288.")
