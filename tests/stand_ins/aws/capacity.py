"""Capacity reservations and capacity blocks, and who may launch into them.

A block is bought from the offerings that a test set; each purchase makes another one, as AWS's isn't idempotent.
Dates aren't watched: a block is active from its purchase until the test ends. Can't: interruptible and future-dated
reservations, UltraServers, splitting and moving.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.ec2.models.instance_types import INSTANCE_TYPES

from tests.stand_ins.aws.backends import ACCOUNT, tags
from tests.stand_ins.aws.refusals import Refused, new_id, tag_specification
from tests.stand_ins.aws.state import STATE


def _answer(backend: Any, held: dict[str, Any]) -> dict[str, Any]:
    shown = {key: value for key, value in held.items() if not key.startswith("_")}
    return {**shown, "Tags": tags(backend, held["CapacityReservationId"])}


def _found(reservation_id: str, region: str) -> dict[str, Any]:
    if not reservation_id.startswith("cr-"):
        raise Refused("InvalidCapacityReservationId.Malformed", f"Invalid id: {reservation_id}")
    held = STATE.reservations.get(reservation_id)
    if held is None or held["_region"] != region:
        message = f"The capacity reservation '{reservation_id}' does not exist."
        raise Refused("InvalidCapacityReservationId.NotFound", message)
    return held


def create_reservation(self: Any) -> ActionResult:
    """CreateCapacityReservation, with EC2's idempotency by ClientToken, and capacity taken at once."""
    kind, zone = self._get_param("InstanceType"), self._get_param("AvailabilityZone")
    count = int(self._get_param("InstanceCount"))
    token = self._get_param("ClientToken")
    if token:
        for held in STATE.reservations.values():
            if held["_token"] == (self.region, token):
                return ActionResult({"CapacityReservation": _answer(self.ec2_backend, held)})
    if kind not in INSTANCE_TYPES:
        raise Refused("InvalidParameterValue", f"Invalid value '{kind}' for InstanceType.")
    if not zone or not zone.startswith(self.region) or zone not in STATE.offerings.get(kind, [zone]):
        raise Refused("Unsupported", f"Your requested instance type ({kind}) is not supported in {zone}.")
    end, end_type = self._get_param("EndDate"), self._get_param("EndDateType") or "unlimited"
    if (end is not None) != (end_type == "limited"):
        raise Refused("InvalidParameterCombination", "EndDate goes with the EndDateType limited, and only with it.")
    if (end_type == "limited") and end.replace(tzinfo=None) < utcnow() + timedelta(hours=1):
        raise Refused("InvalidParameterValue", "The end date must be at least one hour from now.")
    left = STATE.capacity.get((zone, kind))
    if left is not None:
        if left < count:
            raise Refused("InsufficientInstanceCapacity", f"Insufficient capacity for {count} {kind} in {zone}.")
        STATE.capacity[(zone, kind)] = left - count
    held = _new(self, kind=kind, zone=zone, count=count, reservation_type="default")
    held |= {
        "InstancePlatform": self._get_param("InstancePlatform"),
        "Tenancy": self._get_param("Tenancy") or "default",
        "InstanceMatchCriteria": self._get_param("InstanceMatchCriteria") or "open",
        "EndDateType": end_type,
        "EndDate": end,
        "PlacementGroupArn": self._get_param("PlacementGroupArn"),
        "EbsOptimized": bool(self._get_param("EbsOptimized")),
        "_token": (self.region, token) if token else None,
    }
    return ActionResult({"CapacityReservation": _answer(self.ec2_backend, held)})


def _new(self: Any, *, kind: str, zone: str, count: int, reservation_type: str) -> dict[str, Any]:
    number = new_id("cr")
    held = {
        "CapacityReservationId": number,
        "OwnerId": ACCOUNT,
        "CapacityReservationArn": f"arn:aws:ec2:{self.region}:{ACCOUNT}:capacity-reservation/{number}",
        "InstanceType": kind,
        "AvailabilityZone": zone,
        "TotalInstanceCount": count,
        "AvailableInstanceCount": count,
        "State": "active",
        "CreateDate": utcnow(),
        "StartDate": utcnow(),
        "ReservationType": reservation_type,
        "_region": self.region,
        "_token": None,
    }
    self.ec2_backend.tags[number].update(tag_specification(self, "capacity-reservation"))
    STATE.reservations[number] = held
    return held


def describe_reservations(self: Any) -> ActionResult:
    """DescribeCapacityReservations, by ids and the filters state, instance-type, availability-zone, tag:<key>."""
    here = [held for held in STATE.reservations.values() if held["_region"] == self.region]
    ids = self._get_param("CapacityReservationIds", [])
    if ids:
        here = [_found(each, self.region) for each in ids]
    fields = {"state": "State", "instance-type": "InstanceType", "availability-zone": "AvailabilityZone"}
    for name, values in self._filters_from_querystring().items():
        if name.startswith("tag:"):
            stored = self.ec2_backend.tags
            here = [held for held in here if stored[held["CapacityReservationId"]].get(name[4:]) in values]
        elif name in fields:
            here = [held for held in here if held[fields[name]] in values]
        else:
            raise Refused("InvalidParameterValue", f"The filter '{name}' is invalid")
    return ActionResult({"CapacityReservations": [_answer(self.ec2_backend, held) for held in here]})


def cancel_reservation(self: Any) -> ActionResult:
    """CancelCapacityReservation; a block can't be cancelled."""
    held = _found(self._get_param("CapacityReservationId"), self.region)
    if held["ReservationType"] == "capacity-block":
        raise Refused("OperationNotPermitted", "You can't cancel a Capacity Block.")
    if held["State"] != "active":
        raise Refused("InvalidState", f"The capacity reservation is {held['State']}.")
    held["State"] = "cancelled"
    where = (held["AvailabilityZone"], held["InstanceType"])
    if where in STATE.capacity:
        STATE.capacity[where] += held["AvailableInstanceCount"]
    return ActionResult({"Return": True})


def modify_reservation(self: Any) -> ActionResult:
    """ModifyCapacityReservation: the count and the end date."""
    held = _found(self._get_param("CapacityReservationId"), self.region)
    if held["ReservationType"] == "capacity-block":
        raise Refused("OperationNotPermitted", "You can't modify a Capacity Block.")
    count = self._get_param("InstanceCount")
    if count is not None:
        held["AvailableInstanceCount"] += int(count) - held["TotalInstanceCount"]
        held["TotalInstanceCount"] = int(count)
    for name in ("EndDate", "EndDateType", "InstanceMatchCriteria"):
        if self._get_param(name) is not None:
            held[name] = self._get_param(name)
    return ActionResult({"Return": True})


def describe_block_offerings(self: Any) -> ActionResult:
    """DescribeCapacityBlockOfferings: what the test put on offer, by type, count and hours."""
    kind, count = self._get_param("InstanceType"), self._get_param("InstanceCount")
    hours = self._get_param("CapacityDurationHours")
    offered = [
        each
        for each in STATE.block_offerings
        if (kind is None or each["InstanceType"] == kind)
        and (count is None or each["InstanceCount"] == int(count))
        and (hours is None or each["CapacityBlockDurationHours"] == int(hours))
        and each["AvailabilityZone"].startswith(self.region)
    ]
    start = utcnow() + timedelta(minutes=30)
    shown = [
        {
            "StartDate": start,
            "EndDate": start + timedelta(hours=each["CapacityBlockDurationHours"]),
            "CurrencyCode": "USD",
            "Tenancy": "default",
            **each,
        }
        for each in offered
    ]
    return ActionResult({"CapacityBlockOfferings": shown})


def purchase_block(self: Any) -> ActionResult:
    """PurchaseCapacityBlock: active at once."""
    wanted = self._get_param("CapacityBlockOfferingId")
    offer = next((each for each in STATE.block_offerings if each["CapacityBlockOfferingId"] == wanted), None)
    if offer is None:
        raise Refused("InvalidCapacityBlockOfferingId.NotFound", f"The capacity block offering '{wanted}' is unknown.")
    held = _new(
        self,
        kind=offer["InstanceType"],
        zone=offer["AvailabilityZone"],
        count=int(offer["InstanceCount"]),
        reservation_type="capacity-block",
    )
    held |= {
        "InstancePlatform": self._get_param("InstancePlatform"),
        "Tenancy": "default",
        "InstanceMatchCriteria": "targeted",
        "EndDateType": "limited",
        "EndDate": utcnow() + timedelta(hours=offer["CapacityBlockDurationHours"]),
    }
    return ActionResult({"CapacityReservation": _answer(self.ec2_backend, held)})


def take(reservation_id: str, *, region: str, kind: str, zone: str, count: int, block: bool) -> None:
    """Launch `count` machines into a reservation. Raises Refused when it isn't for them or has too few left."""
    held = _found(reservation_id, region)
    if held["State"] != "active":
        raise Refused("InvalidCapacityReservationState", f"{reservation_id} is {held['State']}.")
    if held["InstanceType"] != kind or held["AvailabilityZone"] != zone:
        raise Refused(
            "InvalidParameterValue",
            f"The attributes of the instance do not match those of {reservation_id}: it is for "
            f"{held['InstanceType']} in {held['AvailabilityZone']}, not {kind} in {zone}.",
        )
    if block != (held["ReservationType"] == "capacity-block"):
        raise Refused("InvalidParameterCombination", f"{reservation_id} is of the type {held['ReservationType']}.")
    if held["AvailableInstanceCount"] < count:
        raise Refused(
            "ReservationCapacityExceeded",
            f"The requested number of instances exceeds the available capacity of {reservation_id}.",
        )
    held["AvailableInstanceCount"] -= count


def give_back(reservation_id: str) -> None:
    """A machine of the reservation ended."""
    STATE.reservations[reservation_id]["AvailableInstanceCount"] += 1
