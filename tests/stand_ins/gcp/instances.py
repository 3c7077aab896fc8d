"""An instance's life: what is added to it when it starts, why it may not start, and how it ends."""

from __future__ import annotations

import datetime
import ipaddress
import math
from typing import Any

from tests.stand_ins.gcp.cloud import Cloud
from tests.stand_ins.gcp.errors import GcpError, invalid
from tests.stand_ins.gcp.store import Body, Operation, link, path_of


def launch(cloud: Cloud, path: str, body: Body) -> Operation:
    """Put the instance there as PROVISIONING; whether it starts, its operation says later."""
    project, zone, name = path.split("/")[1], path.split("/")[3], path.split("/")[-1]
    errors, http = _refusal(cloud, path, body, zone)
    disks = _disks(cloud, project, zone, name, body)
    _addresses(cloud, project, body)
    body |= {"status": "PROVISIONING", "cpuPlatform": "Unknown CPU Platform", "ran_s": 0.0}
    cloud.store.resources[path] = body

    def end() -> None:
        if errors:
            for disk in disks:
                cloud.store.resources.pop(disk, None)
            _forget(cloud, path)
        elif body["status"] == "PROVISIONING":
            body.update(status="RUNNING", lastStartTimestamp=cloud.store.now())

    return cloud.store.begin("insert", path, end, errors=errors, http=http)


def _refusal(cloud: Cloud, path: str, body: Body, zone: str) -> tuple[list[Body], tuple[int, str]]:
    """What fails after the request was taken: quota first, then what the zone has."""
    machine = body["machineType"].rpartition("/")[2]
    exceeded = cloud.quotas.exceeded(cloud.store, path, body)
    if exceeded:
        return exceeded, (403, "FORBIDDEN")
    if (zone, machine) in cloud.faults.unsupported:
        message = f"Instance type {machine} is not supported in zone {zone}."
        return [{"code": "UNSUPPORTED_OPERATION", "message": message}], (400, "BAD REQUEST")
    left, code = cloud.faults.capacity.get((zone, machine), (None, ""))
    if left is None or _reserved(cloud, path, body):
        return [], (503, "SERVICE UNAVAILABLE")
    if left <= 0:
        where = f"projects/{path.split('/')[1]}/zones/{zone}"
        message = (
            f"The zone '{where}' does not have enough resources available to fulfill the request.  "
            "Try a different zone, or try again later."
        )
        return [{"code": code, "message": message}], (503, "SERVICE UNAVAILABLE")
    cloud.faults.capacity[zone, machine] = (left - 1, code)
    return [], (503, "SERVICE UNAVAILABLE")


def _reserved(cloud: Cloud, path: str, body: Body) -> bool:
    """Whether it takes a place in a reservation. Raises when a specific one is full."""
    affinity = body.get("reservationAffinity") or {}
    if affinity.get("consumeReservationType") != "SPECIFIC_RESERVATION":
        return False
    name = affinity["values"][0].partition("/reservationBlocks/")[0].rpartition("/")[2]
    found = cloud.store.resources["/".join([*path.split("/")[:4], "reservations", name])]["specificReservation"]
    if int(found["inUseCount"]) >= int(found["count"]):
        raise invalid("resource.reservationAffinity.values", name, "The reservation has no capacity left.")
    found["inUseCount"] = str(int(found["inUseCount"]) + 1)
    body["reserved_in"] = name
    return True


def _disks(cloud: Cloud, project: str, zone: str, name: str, body: Body) -> list[str]:
    """Make the disks that are to be made, attach the others; the paths of those made."""
    made = []
    for index, disk in enumerate(body["disks"]):
        disk.setdefault("deviceName", f"persistent-disk-{index}")
        disk.setdefault("mode", "READ_WRITE")
        disk["index"] = index
        start = disk.get("initializeParams")
        if not start:
            path, there = cloud.store.refer(disk["source"], project, "disks", f"resource.disks[{index}].source")
            if cloud.store.users_of(path) and disk["mode"] == "READ_WRITE":
                raise GcpError(
                    400, "resourceInUseByAnotherResource", f"The disk resource '{path}' is already being used"
                )
            disk["source"] = link(path)
            there["users"] = [link(f"projects/{project}/zones/{zone}/instances/{name}")]
            continue
        if disk.get("type") == "SCRATCH":
            continue
        own = start.get("diskName") or (name if disk.get("boot") else f"{name}-{index}")
        path = f"projects/{project}/zones/{zone}/disks/{own}"
        if path in cloud.store.resources:
            raise GcpError(409, "alreadyExists", f"The resource '{path}' already exists")
        made.append((path, start, disk))
    for path, start, disk in made:
        cloud.store.resources[path] = {
            "kind": "compute#disk",
            "id": cloud.store.new_id(),
            "name": path.rpartition("/")[2],
            "sizeGb": start["diskSizeGb"],
            "type": link(start["diskType"]),
            "labels": start.get("labels", {}),
            "status": "READY",
            "zone": link(f"projects/{project}/zones/{zone}"),
            "selfLink": link(path),
            "creationTimestamp": cloud.store.now(),
            "labelFingerprint": "1",
            "users": [link(f"projects/{project}/zones/{zone}/instances/{name}")],
        }
        disk["source"] = link(path)
        disk["type"] = "PERSISTENT"
        del disk["initializeParams"]
    return [path for path, _, _ in made]


def _addresses(cloud: Cloud, project: str, body: Body) -> None:
    for index, nic in enumerate(body["networkInterfaces"]):
        nic["name"] = f"nic{index}"
        subnet = nic["subnetwork"]
        nic.setdefault("networkIP", _free(cloud, subnet, project, body))
        for config in nic.get("accessConfigs", []):
            config.setdefault("name", "external-nat")
            config.setdefault("type", "ONE_TO_ONE_NAT")
            config.setdefault("networkTier", "PREMIUM")
            wanted = config.get("natIP")
            config["natIP"] = wanted or cloud.external_address()
            for _, address in cloud.store.of("addresses", project):
                if wanted and address.get("address") == wanted:
                    address |= {"status": "IN_USE", "users": [body["selfLink"]]}


def _free(cloud: Cloud, subnet: str, project: str, body: Body) -> str:
    """The first address of the subnet that nobody has; the first two and the last two are Google's."""
    inside = ipaddress.IPv4Network(cloud.store.resources[path_of(subnet, project)]["ipCidrRange"])
    nics = [nic for _, other in cloud.store.of("instances", project) for nic in other["networkInterfaces"]]
    taken = {nic.get("networkIP") for nic in [*nics, *body["networkInterfaces"]] if nic.get("subnetwork") == subnet}
    for number in range(2, inside.num_addresses - 2):
        if str(inside[number]) not in taken:
            return str(inside[number])
    raise GcpError(400, "invalid", f"IP space of '{path_of(subnet, project)}' is exhausted.")


def delete(cloud: Cloud, path: str, *, kind: str = "delete") -> Operation:
    """STOPPING until the operation's end, longer where a test ordered that; then gone with its disks."""
    body = cloud.store.resources[path]
    if body.get("deletionProtection") and kind == "delete":
        raise GcpError(400, "invalid", f"Resource cannot be deleted if it's protected against deletion. '{path}'")
    for operation in cloud.store.operations.values():  # an insert under way is over: the delete has the last word
        if operation.target == path and operation.body["status"] != "DONE":
            cloud.store.finish(operation)
    body["status"] = "STOPPING"
    ordered = cloud.faults.taken(cloud.faults.stopping, body["name"])
    return cloud.store.begin(kind, path, lambda: _forget(cloud, path), reads=ordered + 1 if ordered else None)


def stop(cloud: Cloud, path: str, *, kind: str = "stop") -> Operation:
    body = cloud.store.resources[path]
    body["status"] = "STOPPING"

    def end() -> None:
        body.update(status="TERMINATED", lastStopTimestamp=cloud.store.now())

    return cloud.store.begin(kind, path, end)


def preempt(cloud: Cloud, path: str) -> Operation:
    """What happens to a Spot instance whose capacity is wanted back."""
    body = cloud.store.resources[path]
    if not body["scheduling"].get("preemptible"):
        raise ValueError(f"{path} is no Spot instance")
    deletes = body["scheduling"].get("instanceTerminationAction") == "DELETE"
    kind = "compute.instances.preempted"
    return delete(cloud, path, kind=kind) if deletes else stop(cloud, path, kind=kind)


def let_time_pass(cloud: Cloud, seconds: float) -> None:
    """Everything under way ends; instances whose time is over do what they were told to."""
    cloud.store.finish_all()
    cloud.store.clock_s += seconds
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=cloud.store.clock_s)
    for path, body in cloud.store.of("instances"):
        if body["status"] != "RUNNING":
            continue
        body["ran_s"] += seconds
        plan = body["scheduling"]
        limit_s = float(plan["maxRunDuration"]["seconds"]) if plan.get("maxRunDuration") else math.inf
        at = plan.get("terminationTime")
        if body["ran_s"] < limit_s and (not at or now < datetime.datetime.fromisoformat(at)):
            continue
        kind = "compute.instances.terminated"
        ends = delete if plan["instanceTerminationAction"] == "DELETE" else stop
        cloud.store.finish(ends(cloud, path, kind=kind))


def _forget(cloud: Cloud, path: str) -> None:
    """Gone, with its auto-delete disks; what it used is free again."""
    body = cloud.store.resources.pop(path, None)
    if body is None:
        return
    cloud.guest_attributes.pop(path, None)
    project = path.split("/")[1]
    for disk in body["disks"]:
        there = path_of(str(disk.get("source", "")), project)
        if disk.get("autoDelete"):
            cloud.store.resources.pop(there, None)
        elif there in cloud.store.resources:
            cloud.store.resources[there].pop("users", None)
    for _, address in cloud.store.of("addresses", project):
        if body["selfLink"] in address.get("users", []):
            address["status"] = "RESERVED"
            del address["users"]
    name = body.get("reserved_in")
    reservation: dict[str, Any] | None = cloud.store.resources.get(
        "/".join([*path.split("/")[:4], "reservations", str(name)])
    )
    if reservation:
        specific = reservation["specificReservation"]
        specific["inUseCount"] = str(int(specific["inUseCount"]) - 1)
    key = (path.split("/")[3], body["machineType"].rpartition("/")[2])
    if key in cloud.faults.capacity and body["status"] != "PROVISIONING" and not name:
        left, code = cloud.faults.capacity[key]
        cloud.faults.capacity[key] = (left + 1, code)


def guest_attributes(cloud: Cloud, path: str, query: str) -> Body:
    """getGuestAttributes: what a test put there, and only if the instance's metadata allows it."""
    body = cloud.store.read(path)
    items = {item["key"]: item.get("value", "") for item in (body.get("metadata") or {}).get("items", [])}
    namespace = query.strip("/")
    found = cloud.guest_attributes.get(path, {}).get(namespace)
    if items.get("enable-guest-attributes", "").upper() != "TRUE" or not found:
        raise GcpError(404, "notFound", f"The resource '{query}' of type 'Guest Attribute' was not found.")
    values = [{"namespace": namespace, "key": key, "value": value} for key, value in found.items()]
    return {
        "kind": "compute#guestAttributes",
        "queryPath": query,
        "selfLink": link(path) + "/guestAttributes/",
        "queryValue": {"items": values},
    }


def shown(body: Body) -> Body:
    """Without our own notes."""
    return {key: value for key, value in body.items() if key not in ("ran_s", "reserved_in")}
