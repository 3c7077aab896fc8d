"""RunInstances as EC2 does it, and how instances end.

Adds to moto: idempotency by ClientToken, capacity per zone and type, vCPU quotas, offered zones, placement groups,
reservations and blocks, several network cards, defaults of DeleteOnTermination, MaxCount, slow and failed launches.
What is checked of the request is in launch_checks.py.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.ec2.models.elastic_network_interfaces import Attachment
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.models.instances import Instance, StateReason
from moto.ec2.responses import EC2Response

from tests.stand_ins.aws import capacity
from tests.stand_ins.aws.backends import ec2, live_instances
from tests.stand_ins.aws.launch_checks import check, market, zone_of
from tests.stand_ins.aws.refusals import Refused
from tests.stand_ins.aws.state import STATE, AwsError

CARD = 1000  # moto keeps one interface a device index: a card's devices get numbers of their own while inside it
MESSAGES = {
    "Server.InsufficientInstanceCapacity": "There was insufficient capacity available to satisfy the launch request.",
    "Client.VolumeLimitExceeded": "The limit on the total volume storage was exceeded.",
    "Server.SpotInstanceTermination": "A Spot Instance was terminated due to an increase in the Spot price.",
    "Client.InstanceInitiatedShutdown": "The instance was shut down from the operating system of the instance.",
}


def install() -> None:
    """Put this into moto's classes. Once, before the first request."""
    _launching()
    _interfaces()
    _ending()


def _launching() -> None:
    original = EC2Response.run_instances

    def run_instances(self: Any) -> ActionResult:
        params = _with_template(self)
        token = params.pop("ClientToken", None)
        digest = hashlib.sha256(json.dumps(params, sort_keys=True, default=str).encode()).hexdigest()
        if token is not None and (self.region, token) in STATE.launches:
            earlier, reservation = STATE.launches[(self.region, token)]
            if earlier != digest:
                raise Refused(
                    "IdempotentParameterMismatch",
                    f"The client token '{token}' was used with other parameters in an earlier request.",
                )
            return ActionResult(reservation)
        if token is not None and (len(token) > 64 or not token.isascii()):
            raise Refused("InvalidParameterValue", "Invalid ClientToken: at most 64 ASCII characters")
        check(self.ec2_backend, self.region, params)
        if params.get("DryRun"):
            self.error_on_dryrun()
        count = _admit(self, params)
        _complete(self, params, count)
        result = original(self)
        reservation = result.result
        for instance in reservation.instances:
            _finish(instance, params)
        if token is not None:
            STATE.launches[(self.region, token)] = (digest, reservation)
        return result

    EC2Response.run_instances = run_instances  # type: ignore[method-assign]


def _with_template(self: Any) -> dict[str, Any]:
    """The request's parameters over its launch template's."""
    params = json.loads(json.dumps(self.params, default=str))
    template = self._get_param("LaunchTemplate", {})
    if not template:
        return dict(params)
    data = json.loads(json.dumps(self.ec2_backend._get_template_from_args(template).data, default=str))
    return {**data, **params}


def _admit(self: Any, params: dict[str, Any]) -> int:
    """How many machines start. Raises for quota first, then for capacity, as EC2 does."""
    kind, zone = params["InstanceType"], zone_of(self.ec2_backend, self.region, params)
    least, most = int(params["MinCount"]), int(params["MaxCount"])
    offered = STATE.offerings.get(kind)
    if offered is not None and zone not in offered:
        others = ", ".join(offered) or "another Region"
        raise Refused(
            "Unsupported",
            f"Your requested instance type ({kind}) is not supported in your requested Availability Zone ({zone}). "
            f"Please retry your request by not specifying an Availability Zone or choosing {others}.",
        )
    how = market(params)
    target = (params.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget") or {}
    reservation = target.get("CapacityReservationId")
    if how != "capacity-block":
        _check_quota(self, kind=kind, spot=how == "spot", count=least)
    if reservation:
        block = how == "capacity-block"
        capacity.take(reservation, region=self.region, kind=kind, zone=zone, count=most, block=block)
        return most
    left = STATE.capacity.get((zone, kind))
    if left is None:
        return most
    if left < least:
        # 500, as EC2: clients retry it by themselves a few times
        raise AwsError(
            "InsufficientInstanceCapacity",
            f"We currently do not have sufficient {kind} capacity in the Availability Zone you requested ({zone}). "
            "Our system will be working on provisioning additional capacity.",
            status=500,
        )
    count = min(left, most)
    STATE.capacity[(zone, kind)] = left - count
    return count


def quota_code(kind: str, *, spot: bool) -> str:
    """The quota of a type's family."""
    if kind.startswith("p"):
        return "L-7212CCBC" if spot else "L-417A185B"
    if kind.startswith(("g", "vt")):
        return "L-3819A6DF" if spot else "L-DB2E81BA"
    return "L-34B43A08" if spot else "L-1216C47A"


def _vcpus(kind: str) -> int:
    return int(INSTANCE_TYPES[kind]["VCpuInfo"]["DefaultVCpus"])


def _check_quota(self: Any, *, kind: str, spot: bool, count: int) -> None:
    code = quota_code(kind, spot=spot)
    used = 0
    for each in live_instances(self.ec2_backend):
        details = STATE.launch_details.get(each.id, {})
        if details.get("market") != "capacity-block" and details.get("quota") == code:
            used += _vcpus(each.instance_type)
    if used + count * _vcpus(kind) <= STATE.quotas[code]:
        return
    if spot:
        raise Refused("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
    raise Refused(
        "VcpuLimitExceeded",
        f"You have requested more vCPU capacity than your current vCPU limit of {STATE.quotas[code]:.0f} allows for "
        "the instance bucket that the specified instance type belongs to. Please visit "
        "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit.",
    )


def _complete(self: Any, params: dict[str, Any], count: int) -> None:
    """Into the parameters that moto reads: the number that starts, and EC2's defaults."""
    self.params["MinCount"] = str(count)
    if params.get("NetworkInterfaces"):
        interfaces = params["NetworkInterfaces"]
        for each in interfaces:
            each.setdefault("DeleteOnTermination", "NetworkInterfaceId" not in each)
            each["_card"], each["_device"] = int(each.get("NetworkCardIndex") or 0), int(each["DeviceIndex"])
            each["DeviceIndex"] = each["_card"] * CARD + each["_device"]
        self.params["NetworkInterfaces"] = interfaces
    mappings = params.get("BlockDeviceMappings") or []
    for each in mappings:
        if "Ebs" in each:
            each["Ebs"].setdefault("DeleteOnTermination", True)
            each["Ebs"].setdefault("VolumeSize", 15)
    if mappings:
        self.params["BlockDeviceMappings"] = [each for each in mappings if "Ebs" in each]


def _finish(instance: Any, params: dict[str, Any]) -> None:
    how = market(params)
    kind = instance.instance_type
    group = (params.get("Placement") or {}).get("GroupName")
    instance.placement.group_name = group or ""
    instance.placement.tenancy = (params.get("Placement") or {}).get("Tenancy") or "default"
    target = (params.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget") or {}
    reservation = target.get("CapacityReservationId")
    instance.capacity_reservation_id = reservation
    instance.lifecycle = how if how in ("spot", "capacity-block") else None
    instance.instance_lifecycle = instance.lifecycle
    if not params.get("NetworkInterfaces"):
        for eni in instance.nics.values():
            eni.delete_on_termination = True
    STATE.launch_details[instance.id] = {
        "market": how,
        "quota": quota_code(kind, spot=how == "spot"),
        "zone": instance.placement.zone,
        "reservation": reservation,
    }
    specifications = params.get("TagSpecifications") or []
    for each in specifications:
        if each.get("ResourceType") == "network-interface":
            for eni in instance.nics.values():
                eni.add_tags({tag["Key"]: tag.get("Value", "") for tag in each.get("Tags", [])})
    if STATE.stillborn:
        _end(instance, STATE.stillborn.pop(0))


def _interfaces() -> None:
    prepare, attached = Instance.prep_nics, Attachment.__init__

    def prep_nics(self: Any, nic_spec: list[dict[str, Any]], **options: Any) -> None:
        wanted = {int(each["DeviceIndex"]): each for each in nic_spec if "_card" in each}
        prepare(self, nic_spec, **options)
        for number, eni in self.nics.items():
            spec = wanted.get(number)
            if spec is None:
                continue
            eni.device_index, eni.network_card_index = spec["_device"], spec["_card"]
            eni.interface_type = spec.get("InterfaceType") or "interface"
            if eni.interface_type == "efa-only":
                eni.private_ip_address, eni.private_ip_addresses, eni.private_dns_name = None, [], None

    def init(self: Any, eni: Any) -> None:
        attached(self, eni)
        self.network_card_index = getattr(eni, "network_card_index", 0)

    Instance.prep_nics = prep_nics  # type: ignore[method-assign]
    Attachment.__init__ = init  # type: ignore[method-assign]


def _ending() -> None:
    terminate = Instance.terminate

    def slowly(self: Any) -> Any:
        if self.state == "terminated" or self.id in STATE.shutting_down:
            return _state(self)
        if STATE.slow_terminations:
            before = _state(self)
            STATE.shutting_down[self.id] = STATE.slow_terminations.pop(0)
            self._state.name, self._state.code = "shutting-down", 32
            return before
        return terminate_now(self)

    def terminate_now(self: Any) -> Any:
        for eni in list(self.nics.values()):
            for address in self.ec2_backend.addresses:
                if address.eni is eni or address.instance is self:
                    address.eni = address.instance = address.association_id = None
        kept = [eni for eni in self.nics.values() if not eni.delete_on_termination]
        before = terminate(self)
        for eni in kept:
            eni.instance = eni.attachment_id = eni.attach_time = None
            eni.status = "available"
        _give_capacity_back(self)
        return before

    Instance.terminate = slowly  # type: ignore[method-assign]
    Instance.terminate_now = terminate_now  # type: ignore[attr-defined]


def _state(instance: Any) -> Any:
    return type(instance._state)(instance.state, instance.state_code)


def _give_capacity_back(instance: Any) -> None:
    details = STATE.launch_details.get(instance.id)
    if details is None or details.get("ended"):
        return
    details["ended"] = True
    if details["reservation"]:
        capacity.give_back(details["reservation"])
    elif (details["zone"], instance.instance_type) in STATE.capacity:
        STATE.capacity[(details["zone"], instance.instance_type)] += 1


def one_describe_nearer_to_the_end(region: str) -> None:
    """Instances that shut down slowly are terminated after as many DescribeInstances as the test asked for."""
    backend = ec2(region)
    for number in [each.id for each in backend.all_instances() if each.id in STATE.shutting_down]:
        if STATE.shutting_down[number] > 0:
            STATE.shutting_down[number] -= 1
            continue
        del STATE.shutting_down[number]
        backend.get_instance(number).terminate_now()


def _end(instance: Any, reason: str) -> None:
    instance.terminate_now()
    instance.state_reason = StateReason(f"{reason}: {MESSAGES.get(reason, 'as the test asked')}", reason)
    instance._reason = f"{reason} ({utcnow():%Y-%m-%d %H:%M:%S GMT})"


def _anywhere(instance_id: str) -> Any:
    from tests.stand_ins.aws.inventory import _made, ec2_backends

    for backend in _made(ec2_backends):
        for each in backend.all_instances():
            if each.id == instance_id:
                return each
    raise KeyError(f"no instance {instance_id}")


def end(instance_id: str, reason: str) -> str:
    """AWS ends an instance by itself, for `reason` (a spot interruption, a failed host). Returns its state."""
    instance = _anywhere(instance_id)
    _end(instance, reason)
    return str(instance.state)


def shut_down_from_inside(instance_id: str) -> str:
    """`shutdown -h now` in the guest: stops or terminates, by instance-initiated shutdown behaviour."""
    instance = _anywhere(instance_id)
    if instance.instance_initiated_shutdown_behavior == "terminate":
        _end(instance, "Client.InstanceInitiatedShutdown")
    else:
        instance.stop()
        instance.state_reason = StateReason(
            f"Client.InstanceInitiatedShutdown: {MESSAGES['Client.InstanceInitiatedShutdown']}",
            "Client.InstanceInitiatedShutdown",
        )
    return str(instance.state)
