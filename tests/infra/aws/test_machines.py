"""The gang's machines on EC2 as the stand-in has it: what a launch asks for, and every way in which one goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from infra.cluster import node_names
from infra.errors import AccessError, CapacityError, ProviderError, QuotaError, UnsupportedError
from infra.gang import Gang, Machine
from infra.gang_record import Record
from infra.providers.aws import machines as ec2_machines
from infra.providers.aws.machines import AwsMachines
from infra.providers.base import Deployment
from tests.infra.aws.asking import IMAGE, PINNED, Place, deployment, order
from tests.infra.ordering import NOW, boot
from tests.stand_ins.aws.client import StandIn

ZONES = ["us-east-1a", "us-east-1b"]


@pytest.fixture
def place(aws: StandIn, mine: Deployment) -> Place:
    del aws
    return Place(mine)


class Raising:
    """A gang of `nodes` on the stand-in, whose pauses take no time."""

    def __init__(self, place: Place, *, nodes: int = 2, **wish: Any) -> None:
        self.machines = place.machines(**wish)
        self.record = Record(place.mine.gang_folder, provider="aws", now=NOW)
        self.said: list[str] = []
        self.gang = Gang(
            machines=self.machines,
            record=self.record,
            names=node_names(nodes),
            what="g5.xlarge (on-demand)",
            boot=boot,
            report=self.said.append,
            sleep=lambda _: None,
            clock=_ticks(),
        )

    def raised(self) -> list[Machine]:
        return self.gang.raise_in_one_of(ZONES)


def _ticks() -> Any:
    """A clock that goes a second forward with each look."""
    ticks: Iterator[int] = iter(range(10**6))
    return lambda: float(next(ticks))


def running(aws: StandIn) -> list[str]:
    return aws.resources().get("instance", [])


# -- what a launch asks for ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "efa_only"),
    [("p5.48xlarge", 32), ("p4d.24xlarge", 4), ("p6-b300.48xlarge", 16), ("g5.xlarge", 0)],
)
def test_interfaces_of_head_and_member(place: Place, kind: str, efa_only: int) -> None:
    machines, where = place.machines(instance=kind), place.places["us-east-1a"]
    head, member = (machines.launch(order(f"node-{rank}", token=f"{rank}" * 32)) for rank in range(2))
    for id_, first_subnet in ((head, where["public_subnet"]), (member, where["private_subnet"])):
        made = place.instance(id_)["NetworkInterfaces"]
        first = [
            each for each in made if each["Attachment"]["NetworkCardIndex"] == each["Attachment"]["DeviceIndex"] == 0
        ]
        efa = [each for each in made if each["InterfaceType"] == "efa-only"]
        assert [(each["InterfaceType"], each["SubnetId"]) for each in first] == [("interface", first_subnet)]
        assert len(efa) == efa_only
        assert len(made) == efa_only + 1
        assert {each["SubnetId"] for each in efa} <= {where["private_subnet"]}
        assert {group["GroupId"] for each in made for group in each["Groups"]} == {place.group}
        assert all(each["Attachment"]["DeleteOnTermination"] for each in made)
        found = next(machine for machine in machines.find([id_]) if machine.id == id_)
        assert found.facts == {"interface": first[0]["NetworkInterfaceId"]}


def test_metadata_disk_shutdown_and_placement(place: Place, aws: StandIn) -> None:
    id_ = place.machines().launch(order())
    (asked,) = (call["params"] for call in aws.operations("RunInstances"))
    options = asked["MetadataOptions"]
    assert (options["HttpTokens"], int(options["HttpPutResponseHopLimit"])) == ("required", 1)
    assert asked["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert asked["Placement"] == {"GroupName": place.places["us-east-1a"]["placement_group"]}
    assert "InstanceMarketOptions" not in asked
    volume_id = place.instance(id_)["BlockDeviceMappings"][0]["Ebs"]["VolumeId"]
    assert place.instance(id_)["BlockDeviceMappings"][0]["Ebs"]["DeleteOnTermination"] is True
    (volume,) = place.ec2.describe_volumes(VolumeIds=[volume_id])["Volumes"]
    assert (volume["VolumeType"], volume["Encrypted"], volume["Size"]) == ("gp3", True, 200)


def test_the_disk_is_never_smaller_than_the_image(place: Place) -> None:
    asked = place.machines(pinned={**PINNED, "root_gib": 250}).request(order())
    assert asked["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 250


def test_spot_is_asked_for_once_and_ends_when_it_is_interrupted(place: Place) -> None:
    machines = place.machines(market="spot")
    options = machines.request(order())["InstanceMarketOptions"]
    assert options["SpotOptions"] == {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
    assert place.instance(machines.launch(order()))["InstanceLifecycle"] == "spot"


def test_a_reservation_is_named_and_a_block_is_its_own_market(place: Place) -> None:
    held = {"reservation": "cr-0123456789abcdef0"}
    asked = place.machines(**held, reservation_kind="default").request(order())
    target = {"CapacityReservationTarget": {"CapacityReservationId": "cr-0123456789abcdef0"}}
    assert asked["CapacityReservationSpecification"] == target
    assert "InstanceMarketOptions" not in asked
    asked = place.machines(**held, reservation_kind="capacity-block").request(order())
    assert asked["InstanceMarketOptions"] == {"MarketType": "capacity-block"}


def test_instance_volume_and_interfaces_bear_the_stack_s_marks(place: Place, mine: Deployment) -> None:
    id_ = place.machines(instance="p4d.24xlarge").launch(order())
    shown = place.instance(id_)
    volume = shown["BlockDeviceMappings"][0]["Ebs"]["VolumeId"]
    marked = [
        shown["Tags"],
        place.ec2.describe_volumes(VolumeIds=[volume])["Volumes"][0]["Tags"],
        *(each["TagSet"] for each in place.interfaces(id_)),
    ]
    assert len(marked) == 7
    for tags in marked:
        found = {tag["Key"]: tag["Value"] for tag in tags}
        assert found["trainstack"] == mine.identity
        assert found["trainstack-owner"] == mine.owner
        assert found["Name"] == "aws-node-0"


def test_one_token_gives_one_machine(place: Place, aws: StandIn) -> None:
    machines = place.machines()
    first, again = machines.launch(order()), machines.launch(order())
    assert first == again
    assert running(aws) == [first]


def test_another_checkout_s_machines_are_not_found(place: Place, tmp_path: Path) -> None:
    id_ = place.machines().launch(order())
    (tmp_path / "other").mkdir()
    other = deployment(tmp_path / "other")
    assert AwsMachines(other, wish=place.wish(), places=place.places, pinned=PINNED).find() == []
    (found,) = place.machines().find()
    assert (found.id, found.name, found.zone, found.state) == (id_, "node-0", "us-east-1a", "running")


# -- zones ---------------------------------------------------------------------------------------------------------


def test_a_gang_that_one_zone_has_not_whole_goes_to_the_next_and_leaves_nothing(place: Place, aws: StandIn) -> None:
    aws.capacity(zone="us-east-1a", instance_type="g5.xlarge", machines=2)
    up = Raising(place, nodes=3)
    found = up.raised()
    assert [(machine.name, machine.zone) for machine in found] == [(f"node-{rank}", "us-east-1b") for rank in range(3)]
    assert sorted(running(aws)) == sorted(machine.id for machine in found)
    assert "can't be had in us-east-1a, nothing is kept of it" in "".join(up.said)


def test_no_zone_has_it(place: Place, aws: StandIn) -> None:
    for zone in ZONES:
        aws.capacity(zone=zone, instance_type="g5.xlarge", machines=1)
    with pytest.raises(CapacityError, match=r"us-east-1a: .*us-east-1b: .*: nothing was kept; try later"):
        Raising(place).raised()
    assert "instance" not in aws.resources()
    assert "volume" not in aws.resources()


def test_unsupported_in_one_zone_goes_to_the_next_without_asking_again(place: Place, aws: StandIn) -> None:
    aws.offer_only_in("g5.xlarge", ["us-east-1b"])
    assert {machine.zone for machine in Raising(place).raised()} == {"us-east-1b"}
    refused = [call for call in aws.operations("RunInstances") if call["outcome"] != "200"]
    assert len(refused) == 1


def test_unsupported_everywhere_is_told_apart_from_no_capacity(place: Place, aws: StandIn) -> None:
    aws.offer_only_in("g5.xlarge", ["us-east-1f"])
    with pytest.raises(UnsupportedError, match="not supported in your requested Availability Zone"):
        Raising(place).raised()


# -- what is final -------------------------------------------------------------------------------------------------


def test_a_quota_short_by_one_is_final_and_nothing_stays(place: Place, aws: StandIn) -> None:
    aws.quota("L-DB2E81BA", 2 * 4 - 1)
    with pytest.raises(
        QuotaError,
        match=r"VcpuLimitExceeded\), each g5.xlarge takes 4 vCPUs of 'Running On-Demand G and VT instances' "
        r"\(L-DB2E81BA\): .*no zone or retry changes that; ask for more under",
    ):
        Raising(place).raised()
    assert running(aws) == []
    assert len([call for call in aws.operations("RunInstances") if call["outcome"] != "200"]) == 1


def test_the_spot_quota_is_told_as_quota_too(place: Place, aws: StandIn) -> None:
    aws.quota("L-3819A6DF", 0)
    with pytest.raises(QuotaError, match=r"MaxSpotInstanceCountExceeded\), each g5.xlarge takes 4 .*L-3819A6DF"):
        place.machines(market="spot").launch(order())


@pytest.mark.parametrize("code", ["ExpiredToken", "RequestExpired"])
def test_credentials_that_expire_in_the_middle_say_what_may_be_left(place: Place, aws: StandIn, code: str) -> None:
    aws.expire_credentials(after_calls=3, code=code)
    with pytest.raises(AccessError, match=r"log in again.*could not be ended.*`make destroy`.*it may be billing"):
        Raising(place).raised()
    aws.clear_faults()
    found = Raising(place).raised()
    assert sorted(running(aws)) == sorted(machine.id for machine in found)
    assert len(found) == 2


def test_a_request_without_rights_says_which_and_keeps_it_short(place: Place, aws: StandIn) -> None:
    message = "You are not authorized to perform this operation. Encoded authorization failure message: " + "x" * 5000
    aws.fail("RunInstances", "UnauthorizedOperation", message=message)
    with pytest.raises(
        AccessError, match=r"^node-0 in us-east-1a: .*UnauthorizedOperation\): look at the keys"
    ) as caught:
        place.machines().launch(order())
    assert len(str(caught.value)) < 600


# -- what passes ---------------------------------------------------------------------------------------------------


def test_throttling_and_server_errors_pass_and_make_one_machine(place: Place, aws: StandIn) -> None:
    aws.throttle("RunInstances", 3)
    place.machines().launch(order())
    aws.server_error("RunInstances", 2)
    place.machines().launch(order("node-1", token="1" * 32))
    aws.fail("RunInstances", "Unavailable", status=503)
    place.machines().launch(order("node-2", token="2" * 32))
    assert len(running(aws)) == 3
    assert len({call["params"]["ClientToken"] for call in aws.operations("RunInstances")}) == 3


def test_throttling_that_stays_is_an_error_in_the_end(place: Place, aws: StandIn) -> None:
    aws.throttle("RunInstances", 100)
    with pytest.raises(ProviderError, match="RequestLimitExceeded"):
        place.machines().launch(order())
    assert len(aws.operations("RunInstances")) == 6


def test_what_is_not_seen_yet_is_not_gone(place: Place, aws: StandIn) -> None:
    aws.hide_after("RunInstances", describes=3)
    found = Raising(place).raised()
    assert sorted(running(aws)) == sorted(machine.id for machine in found)
    assert len(aws.operations("RunInstances")) == 2


def test_a_machine_that_is_not_seen_yet_when_its_zone_is_given_up_is_ended_all_the_same(
    place: Place, aws: StandIn
) -> None:
    aws.capacity(zone="us-east-1a", instance_type="g5.xlarge", machines=1)
    aws.hide_after("RunInstances", describes=3)
    found = Raising(place).raised()
    assert sorted(running(aws)) == sorted(machine.id for machine in found)


@pytest.mark.parametrize("reason", ["Server.InsufficientInstanceCapacity", "Server.SpotInstanceTermination"])
def test_a_machine_that_ends_at_once_for_lack_of_capacity_sends_the_gang_on(
    place: Place, aws: StandIn, reason: str
) -> None:
    aws.launch_stillborn(reason)
    found = Raising(place).raised()
    assert {machine.zone for machine in found} == {"us-east-1b"}
    assert sorted(running(aws)) == sorted(machine.id for machine in found)


def test_a_machine_that_ends_at_once_for_its_key_is_no_matter_of_zones(place: Place, aws: StandIn) -> None:
    aws.launch_stillborn("Client.InternalError")
    with pytest.raises(ProviderError, match=r"node-0 ended while it started: .*the key that encrypts its disk") as told:
        Raising(place).raised()
    assert not isinstance(told.value, CapacityError)
    assert running(aws) == []


# -- ending --------------------------------------------------------------------------------------------------------


def test_ending_returns_when_aws_says_terminated(place: Place, aws: StandIn) -> None:
    machines = place.machines()
    ids = [machines.launch(order(f"node-{rank}", token=f"{rank}" * 32)) for rank in range(2)]
    aws.terminate_slowly(describes=5, instances=2)
    machines.end(ids)
    assert "instance" not in aws.resources()
    assert "network interface" not in aws.resources()


def test_a_machine_that_does_not_end_is_named(place: Place, aws: StandIn) -> None:
    clock = iter(range(0, 10**6, 400))
    machines = place.machines(clock=lambda: float(next(clock)))
    id_ = machines.launch(order())
    aws.terminate_slowly(describes=1000)
    with pytest.raises(ProviderError, match=rf"node-0 \({id_}\) is ending 1200 s after .* `fab leftovers`"):
        machines.end([id_])


def test_an_id_that_was_removed_by_hand_or_never_was_has_ended(place: Place) -> None:
    machines = place.machines()
    id_ = machines.launch(order())
    place.ec2.terminate_instances(InstanceIds=[id_])
    machines.end([id_, "i-00000000000000000"])
    machines.end([])


def test_that_a_machine_was_not_found_is_believed_only_when_the_look_says_so_too(place: Place, aws: StandIn) -> None:
    id_ = place.machines().launch(order())
    aws.fail("TerminateInstances", "InvalidInstanceID.NotFound")
    with pytest.raises(ProviderError, match=rf"node-0 \({id_}\) is running"):
        place.machines(clock=iter([0.0, 2000.0]).__next__).end([id_])


def test_server_errors_while_ending_pass(place: Place, aws: StandIn) -> None:
    machines = place.machines()
    id_ = machines.launch(order())
    aws.server_error("TerminateInstances", 1)
    machines.end([id_])
    assert running(aws) == []


def test_the_guard_s_shutdown_deletes_the_machine(place: Place, aws: StandIn) -> None:
    machines = place.machines()
    id_ = machines.launch(order())
    assert aws.guest_shutdown(id_) == "terminated"
    (found,) = machines.find([id_])
    assert (found.state, found.fault) == ("ended", None)
    assert "volume" not in aws.resources()


def test_an_answer_that_names_no_state_is_an_error() -> None:
    for described in ({"InstanceId": "i-1"}, {"InstanceId": "i-1", "State": {"Name": "melting"}}):
        with pytest.raises(ProviderError, match="described instance i-1 without"):
            ec2_machines._machine(described)


def test_the_image_is_pinned_with_its_root_disk(aws: StandIn) -> None:
    del aws
    from infra.providers.aws import PROVIDER

    assert PROVIDER.pin({"region": "us-east-1", "image": "deep-learning"})["image"] == IMAGE
    assert PROVIDER.pin({"region": "us-east-1", "image": IMAGE})["root_device"] == "/dev/sda1"


def test_a_lifetime_is_in_the_user_data(place: Place) -> None:
    assert str(int((NOW + timedelta(hours=1)).timestamp())) in place.machines().request(order())["UserData"]


def test_one_that_can_not_be_ended_does_not_keep_the_others(place: Place, aws: StandIn) -> None:
    gang = Raising(place)
    ids = [machine.id for machine in gang.raised()]
    aws.fail("TerminateInstances", "OperationNotPermitted", message="protected", times=1)
    with pytest.raises(ProviderError, match="protected"):
        gang.machines.end(ids)
    living = [machine.id for machine in gang.machines.find() if machine.lives]
    assert len(living) == len(ids) - 1 == 1
