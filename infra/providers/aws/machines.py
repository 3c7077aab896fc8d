"""The gang's machines on EC2: how one is launched, found and ended. See infra/gang.py for the order of things.

RunInstances directly, since pulumi_aws's Instance knows no ClientToken (a kill between the call and the record would
make a second machine) and no efa-only interface.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from infra.ending import end_each
from infra.errors import ProviderError
from infra.gang import Machine, Order
from infra.providers.aws import api, faults, instances
from infra.providers.base import Deployment
from infra.user_data import cloud_config

_STATES = {
    "pending": "starting",
    "running": "running",
    "stopping": "stopped",
    "stopped": "stopped",
    "shutting-down": "ending",
    "terminated": "ended",
}
NODE_TAG = "trainstack-node"
_END_DEADLINE_S = 1200.0  # machines with eight GPUs need minutes to shut down; the bill stops when that begins


class AwsMachines:
    """One stack's machines in one region. `wish`, `places`, `pinned`: see resources.py, which writes them."""

    boot_deadline_s = 900.0

    def __init__(
        self,
        deployment: Deployment,
        *,
        wish: Mapping[str, Any],
        places: Mapping[str, Any],
        pinned: Mapping[str, Any],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deployment = deployment
        self._wish, self._places, self._pinned = wish, places, pinned
        self._region = str(wish["region"])
        self._sleep, self._clock = sleep, clock

    def launch(self, order: Order) -> str:
        where = f"{order.name} in {order.zone}"
        request = self.request(order)
        answer = api.launch(self._region, where=where, quota=self._quota(), sleep=self._sleep, **request)
        launched = answer.get("Instances", [])
        if len(launched) != 1:
            raise ProviderError(f"{where}: AWS answered with {len(launched)} instances for one: run `fab leftovers`")
        return str(launched[0]["InstanceId"])

    def _quota(self) -> str:
        """What each machine takes of which quota."""
        machine = instances.by_name(str(self._wish["instance"]))
        pool = "spot" if self._wish["market"] == "spot" else "on-demand"
        code, name = instances.QUOTAS[machine.quota_family, pool]
        return f"each {machine.name} takes {machine.vcpus} vCPUs of {name!r} ({code})"

    def request(self, order: Order) -> dict[str, Any]:
        """RunInstances' parameters. Pure."""
        wish, place = self._wish, self._places[order.zone]
        request: dict[str, Any] = {
            "MinCount": 1,
            "MaxCount": 1,
            "ClientToken": order.token,
            "ImageId": self._pinned["image"],
            "InstanceType": wish["instance"],
            "UserData": cloud_config(order.boot),
            "NetworkInterfaces": self._interfaces(order, place),
            "MetadataOptions": {
                "HttpEndpoint": "enabled",
                "HttpTokens": "required",
                "HttpPutResponseHopLimit": 1,
                "InstanceMetadataTags": "disabled",
            },
            "BlockDeviceMappings": [
                {
                    "DeviceName": self._pinned["root_device"],
                    "Ebs": {
                        "VolumeSize": max(int(wish["disk_gib"]), int(self._pinned["root_gib"])),
                        "VolumeType": "gp3",
                        "Encrypted": True,
                        "DeleteOnTermination": True,
                    },
                }
            ],
            # The guard powers off; with this the machine is deleted then, instead of going on to bill its disk.
            "InstanceInitiatedShutdownBehavior": "terminate",
            "TagSpecifications": [
                {"ResourceType": kind, "Tags": self._tags(order.name)}
                for kind in ("instance", "volume", "network-interface")
            ],
        }
        if place.get("placement_group"):
            request["Placement"] = {"GroupName": place["placement_group"]}
        if wish["market"] == "spot":
            # One-time and terminate: a persistent request would bring the machine back after `destroy`.
            options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
        if wish.get("reservation"):
            target = {"CapacityReservationId": wish["reservation"]}
            request["CapacityReservationSpecification"] = {"CapacityReservationTarget": target}
            if wish.get("reservation_kind") == "capacity-block":
                request["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
        if wish.get("instance_profile"):
            request["IamInstanceProfile"] = {"Name": wish["instance_profile"]}
        return request

    def find(self, ids: Iterable[str] = ()) -> list[Machine]:
        ours = [*api.tagged(self._deployment), {"Name": f"tag:{api.OWNER_TAG}", "Values": [self._deployment.owner]}]
        found = {machine.id: machine for machine in _described(self._region, ours)}
        if unseen := sorted(set(ids) - set(found)):
            found |= {machine.id: machine for machine in _described(self._region, [_by_id(unseen)])}
        return list(found.values())

    def end(self, ids: Sequence[str]) -> None:
        end(self._region, ids, sleep=self._sleep, clock=self._clock)

    def _interfaces(self, order: Order, place: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The first interface of the head is in the public subnet, all others in the zone's private one.

        EFA's traffic stays within one subnet, so all efa-only interfaces are in the same. A machine with several
        interfaces gets no public address from AWS: the head gets an Elastic IP (resources.py).
        """
        slots = instances.interfaces(instances.by_name(str(self._wish["instance"])))
        return [
            {
                "NetworkCardIndex": slot.card,
                "DeviceIndex": slot.device,
                "InterfaceType": slot.kind,
                "SubnetId": place["public_subnet"] if order.rank == 0 and slot is slots[0] else place["private_subnet"],
                "Groups": [self._wish["security_group"]],
                "DeleteOnTermination": True,
            }
            for slot in slots
        ]

    def _tags(self, name: str) -> list[dict[str, str]]:
        tags = {
            "Name": f"{self._deployment.stack}-{name}",
            api.IDENTITY_TAG: self._deployment.identity,
            api.OWNER_TAG: self._deployment.owner,
            NODE_TAG: name,
        }
        return [{"Key": key, "Value": value} for key, value in tags.items()]


def end(
    region: str,
    ids: Sequence[str],
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Returns when all have ended; those that aren't there have."""
    end_each(
        ids,
        tell=lambda id_: _terminate(region, id_),
        living=lambda told: {
            machine.id: f"{machine.name} ({machine.id}) is {machine.state}"
            for machine in _described(region, [_by_id(told)])
            if machine.state != "ended"
        },
        deadline_s=_END_DEADLINE_S,
        cloud="AWS",
        console=f"the console of {region}",
        sleep=sleep,
        clock=clock,
    )


def _terminate(region: str, id_: str) -> None:
    """One by one: an id that has just gone would make AWS refuse the whole list."""
    try:
        api.client("ec2", region).terminate_instances(InstanceIds=[id_])
    except api.FAILURES as error:
        if api.code_of(error) != "InvalidInstanceID.NotFound":
            raise api.translated(error, where=f"ending {id_}") from None


def _described(region: str, filters: Sequence[Mapping[str, Any]]) -> list[Machine]:
    return [_machine(each) for each in api.instances(region, filters)]


def _by_id(ids: Sequence[str]) -> dict[str, Any]:
    # A filter and not InstanceIds: one that AWS doesn't know (any more, or yet) would fail the whole call.
    return {"Name": "instance-id", "Values": list(ids)}


def _machine(described: Mapping[str, Any]) -> Machine:
    try:
        state = _STATES[described["State"]["Name"]]
        first = [each for each in described.get("NetworkInterfaces", []) if _is_first(each)]
        tags = api.tags(described.get("Tags"))
        reason = described.get("StateReason", {})
        name = tags.get(NODE_TAG, described["InstanceId"])
        return Machine(
            id=described["InstanceId"],
            name=name,
            zone=described["Placement"]["AvailabilityZone"],
            state=state,  # type: ignore[arg-type]  # a value of _STATES
            private_address=described.get("PrivateIpAddress") or "",
            public_address=described.get("PublicIpAddress") or "",
            fault=faults.ended_by_itself(name, reason.get("Code", ""), reason.get("Message", ""))
            if state in ("ending", "ended")
            else None,
            facts={"interface": first[0]["NetworkInterfaceId"]} if first else {},
        )
    except KeyError as error:
        raise ProviderError(
            f"AWS described instance {described.get('InstanceId', '?')} without {error} or in a state that isn't "
            "known: run the command again"
        ) from None


def _is_first(interface: Mapping[str, Any]) -> bool:
    attachment = interface.get("Attachment", {})
    return (attachment.get("DeviceIndex"), attachment.get("NetworkCardIndex", 0)) == (0, 0)
