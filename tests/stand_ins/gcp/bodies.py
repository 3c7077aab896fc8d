"""From pulumi_gcp's inputs to the bodies of Google's REST API, by table; what has no place there is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Values = dict[str, Any]
# Inputs that are the provider's own business, or part of the path.
OWN = frozenset({"project", "zone", "region", "deletionPolicy", "location", "allowStoppingForUpdate", "forceDestroy"})


class Unserved(Exception):
    """The real provider can do it, this one can't."""


def plain(
    inputs: Values, fields: frozenset[str], renamed: Mapping[str, str] = {}, dropped: tuple[str, ...] = ()
) -> Values:
    """The inputs under Google's names; Unserved for one that Google's schema hasn't."""
    body: Values = {}
    for key, value in inputs.items():
        if value is None or key in OWN or key in dropped or key.startswith("__"):
            continue
        name = renamed.get(key, key)
        if name not in fields:
            raise Unserved(f"the stand-in for GCP has no place for the argument {key}")
        body[name] = value
    return body


def firewall(inputs: Values, fields: frozenset[str]) -> Values:
    body = plain(inputs, fields, {"allows": "allowed", "denies": "denied"})
    for key in ("allowed", "denied"):
        for rule in body.get(key, []):
            rule["IPProtocol"] = rule.pop("protocol")
    return body


def network(inputs: Values, fields: frozenset[str]) -> Values:
    body = plain(inputs, fields, dropped=("routingMode", "deleteDefaultRoutesOnCreate"))
    body.setdefault("autoCreateSubnetworks", True)  # the provider's default
    if inputs.get("routingMode"):
        body["routingConfig"] = {"routingMode": inputs["routingMode"]}
    return body


def nat(inputs: Values, fields: frozenset[str]) -> Values:
    body = plain(inputs, fields, dropped=("router",))
    body["natIpAllocateOption"] = inputs.get("natIpAllocateOption") or "AUTO_ONLY"
    return body


def disk(inputs: Values, fields: frozenset[str]) -> Values:
    body = plain(inputs, fields, {"size": "sizeGb", "image": "sourceImage"})
    if "sizeGb" in body:
        body["sizeGb"] = str(body["sizeGb"])
    return body


def reservation(inputs: Values, fields: frozenset[str]) -> Values:
    body = plain(inputs, fields)
    body["specificReservation"]["count"] = str(body["specificReservation"]["count"])
    return body


def filestore(inputs: Values, fields: frozenset[str]) -> Values:
    body = plain(inputs, fields, dropped=("name",))
    body["fileShares"] = [{**s, "capacityGb": str(s["capacityGb"])} for s in _list(body["fileShares"])]
    body["networks"] = _list(body["networks"])
    return body


def bucket(inputs: Values, fields: frozenset[str]) -> Values:
    body = plain(
        inputs,
        fields,
        {"lifecycleRules": "lifecycle"},
        ("uniformBucketLevelAccess", "publicAccessPrevention", "requesterPays"),
    )
    iam: Values = {}
    if inputs.get("uniformBucketLevelAccess") is not None:
        iam["uniformBucketLevelAccess"] = {"enabled": inputs["uniformBucketLevelAccess"]}
    if inputs.get("publicAccessPrevention"):
        iam["publicAccessPrevention"] = inputs["publicAccessPrevention"]
    if iam:
        body["iamConfiguration"] = iam
    if "softDeletePolicy" in body:
        seconds = body["softDeletePolicy"].get("retentionDurationSeconds", 604800)
        body["softDeletePolicy"] = {"retentionDurationSeconds": str(seconds)}
    if "lifecycle" in body:
        body["lifecycle"] = {"rule": [_lifecycle(rule) for rule in body["lifecycle"]]}
    return {**body, "location": inputs["location"]}


def _lifecycle(rule: Values) -> Values:
    return {key: value for key, value in rule.items() if value is not None}


def instance(inputs: Values, fields: frozenset[str]) -> Values:
    special = (
        "bootDisk",
        "attachedDisks",
        "scratchDisks",
        "metadata",
        "metadataStartupScript",
        "tags",
        "serviceAccount",
        "guestAccelerators",
        "networkInterfaces",
        "scheduling",
        "reservationAffinity",
        "machineType",
        "networkPerformanceConfig",
    )
    body = plain(inputs, fields, dropped=special)
    zone = inputs["zone"]
    machine = inputs["machineType"]
    body["machineType"] = machine if "/" in machine else f"zones/{zone}/machineTypes/{machine}"
    body["disks"] = [_boot_disk(inputs["bootDisk"])]
    body["disks"] += [{**each, "autoDelete": False} for each in inputs.get("attachedDisks") or []]
    for each in inputs.get("scratchDisks") or []:
        start = {"diskType": f"zones/{zone}/diskTypes/local-ssd"}
        body["disks"].append(
            {"type": "SCRATCH", "autoDelete": True, "interface": each["interface"], "initializeParams": start}
        )
    metadata = dict(inputs.get("metadata") or {})
    if inputs.get("metadataStartupScript"):
        metadata["startup-script"] = inputs["metadataStartupScript"]
    body["metadata"] = {"items": [{"key": key, "value": value} for key, value in sorted(metadata.items())]}
    if inputs.get("tags"):
        body["tags"] = {"items": inputs["tags"]}
    if inputs.get("serviceAccount"):
        body["serviceAccounts"] = [inputs["serviceAccount"]]
    if inputs.get("guestAccelerators"):
        body["guestAccelerators"] = [
            {"acceleratorType": f"zones/{zone}/acceleratorTypes/{each['type']}", "acceleratorCount": each["count"]}
            for each in inputs["guestAccelerators"]
        ]
    if inputs.get("networkPerformanceConfig"):
        body["networkPerformanceConfig"] = inputs["networkPerformanceConfig"]
    body["networkInterfaces"] = [_interface(each) for each in inputs["networkInterfaces"]]
    body["scheduling"] = _scheduling(inputs.get("scheduling") or {})
    if inputs.get("reservationAffinity"):
        body["reservationAffinity"] = _affinity(inputs["reservationAffinity"])
    return body


def _boot_disk(given: Values) -> Values:
    disk = {key: value for key, value in given.items() if key != "initializeParams"}
    disk = {"boot": True, "autoDelete": True, **disk}
    if given.get("initializeParams"):
        names = {"image": "sourceImage", "size": "diskSizeGb", "type": "diskType"}
        start = {names.get(key, key): value for key, value in given["initializeParams"].items()}
        if "diskSizeGb" in start:
            start["diskSizeGb"] = str(start["diskSizeGb"])
        disk["initializeParams"] = start
    return disk


def _interface(given: Values) -> Values:
    nic = {{"networkIp": "networkIP"}.get(key, key): value for key, value in given.items()}
    if "accessConfigs" in nic:
        nic["accessConfigs"] = [
            {{"natIp": "natIP"}.get(key, key): value for key, value in config.items()}
            for config in nic["accessConfigs"]
        ]
    return nic


def _scheduling(given: Values) -> Values:
    plan = dict(given)
    for key in ("maxRunDuration", "localSsdRecoveryTimeout", "preemptionNoticeDuration"):
        if key in plan:
            plan[key] = {**plan[key], "seconds": str(plan[key]["seconds"])}
    return plan


def _affinity(given: Values) -> Values:
    specific = given.get("specificReservation") or {}
    return {"consumeReservationType": given["type"], **specific}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


Builder = Callable[[Values, frozenset[str]], Values]
