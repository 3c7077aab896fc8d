"""Lambda's machines through its API's stand-in: none twice, none lost, none that goes on billing."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from infra.cluster import node_names
from infra.errors import AccessError, CapacityError, ProviderError, QuotaError
from infra.gang import Gang
from infra.gang_record import Record
from infra.providers.base import Deployment
from infra.providers.lambda_cloud.api import Lambda
from infra.user_data import cloud_config
from tests.infra.lambda_cloud.asking import REGION, machines, order
from tests.infra.ordering import boot
from tests.stand_ins.lambda_cloud.server import StandIn

LAUNCH = r"/api/v1/instance-operations/launch"


def gang(client: Lambda, mine: Deployment, *, nodes: int = 2, regions: tuple[str, ...] = (REGION,)) -> Gang:
    ticks = iter(range(0, 10**9, 60))
    return Gang(
        machines=machines(client, mine, regions=regions),
        record=Record(mine.gang_folder, provider="lambda", now=datetime.now(UTC)),
        names=node_names(nodes),
        what="gpu_8x_h100_sxm5 on demand",
        boot=boot,
        report=lambda _: None,
        sleep=lambda _: None,
        clock=lambda: next(ticks),
    )


def test_a_machine_is_asked_for_with_its_marks_and_ends(cloud: StandIn, client: Lambda, mine: Deployment) -> None:
    ours = machines(client, mine)
    id_ = ours.launch(order())
    request = cloud.instances[id_].request
    assert request["hostname"] == "node-0"
    assert request["user_data"] == cloud_config(order().boot)
    assert {tag["key"]: tag["value"] for tag in request["tags"]}["trainstack"] == "trainstack/trainstack/lambda"
    (ruleset,) = cloud.rulesets.values()
    assert request["firewall_rulesets"] == [{"id": ruleset["id"]}]
    told = [(rule["protocol"], rule.get("port_range"), rule["source_network"]) for rule in ruleset["rules"]]
    assert told == [("tcp", [22, 22], "203.0.113.7"), ("icmp", None, "203.0.113.7")]
    ours.end([id_])
    assert cloud.billing() == []
    ours.end([id_, "f" * 32])


def test_the_same_order_twice_is_one_machine(cloud: StandIn, client: Lambda, mine: Deployment) -> None:
    ours = machines(client, mine)
    assert ours.launch(order()) == ours.launch(order())
    assert len(cloud.instances) == 1
    assert ours.launch(order(token="1" * 32)) not in (ours.launch(order()), None)


@pytest.mark.parametrize("status", [0, 500])
@pytest.mark.parametrize("unseen", [0, 3])
def test_a_machine_whose_answer_never_came_is_adopted(
    status: int, unseen: int, cloud: StandIn, client: Lambda, mine: Deployment
) -> None:
    ours = machines(client, mine)
    cloud.unseen = unseen
    cloud.fail("POST", LAUNCH, status=status, executes=True)
    assert [ours.launch(order())] == cloud.billing()


def test_one_that_was_not_made_is_not_asked_for_blindly(cloud: StandIn, client: Lambda, mine: Deployment) -> None:
    cloud.fail("POST", LAUNCH, status=0)
    with pytest.raises(ProviderError, match="didn't answer"):
        machines(client, mine).launch(order())
    assert cloud.instances == {}
    assert [call for call in cloud.calls if call[1].endswith("/launch")] == [("POST", LAUNCH)]


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "instance-operations/launch/insufficient-capacity", CapacityError),
        (400, "global/quota-exceeded", QuotaError),
        (401, "global/invalid-api-key", AccessError),
        (403, "global/account-inactive", AccessError),
        (400, "global/invalid-parameters", ProviderError),
    ],
)
def test_refusals_are_told_apart(
    status: int, code: str, kind: type[ProviderError], cloud: StandIn, client: Lambda, mine: Deployment
) -> None:
    ours = machines(client, mine)
    cloud.fail("POST", LAUNCH, status=status, code=code)
    with pytest.raises(ProviderError, match=rf"^node-0 in us-east-1: As ordered \({code}\)") as error:
        ours.launch(order())
    assert type(error.value) is kind


def test_a_gang_comes_whole_in_the_region_that_has_room(cloud: StandIn, client: Lambda, mine: Deployment) -> None:
    cloud.capacity = {("us-east-1", "gpu_8x_h100_sxm5"): 1, ("us-west-1", "gpu_8x_h100_sxm5"): 2}
    found = gang(client, mine, regions=("us-east-1", "us-west-1")).raise_in_one_of(["us-east-1", "us-west-1"])
    assert [(machine.name, machine.zone) for machine in found] == [("node-0", "us-west-1"), ("node-1", "us-west-1")]
    assert sorted(machine.id for machine in found) == sorted(cloud.billing())


def test_a_gang_that_no_region_has_leaves_nothing_on_the_bill(cloud: StandIn, client: Lambda, mine: Deployment) -> None:
    cloud.capacity = {(REGION, "gpu_8x_h100_sxm5"): 1}
    with pytest.raises(CapacityError, match="nothing was kept"):
        gang(client, mine).raise_in_one_of([REGION])
    assert cloud.billing() == []


def test_a_machine_that_turns_out_unhealthy_or_is_taken_away_is_ended_and_named(
    cloud: StandIn, client: Lambda, mine: Deployment
) -> None:
    made = gang(client, mine, nodes=1)
    id_ = made.raise_in_one_of([REGION])[0].id
    cloud.instances[id_].told["status"] = "unhealthy"
    (fresh,) = made.complete(REGION)
    assert fresh.id != id_
    assert cloud.billing() == [fresh.id]
    cloud.preempt(fresh.id)
    (machine,) = [each for each in made.machines.find([fresh.id]) if each.id == fresh.id]
    assert machine.state == "ended"
    assert isinstance(machine.fault, CapacityError)


def test_machines_without_tags_are_still_ours(cloud: StandIn, client: Lambda, mine: Deployment) -> None:
    cloud.drops_tags = True
    found = gang(client, mine).raise_in_one_of([REGION])
    assert [machine.name for machine in found] == ["node-0", "node-1"]


def test_one_that_does_not_end_is_named(cloud: StandIn, client: Lambda, mine: Deployment) -> None:
    ours = machines(client, mine)
    id_ = ours.launch(order())
    cloud.ends = 10**6
    with pytest.raises(ProviderError, match=rf"{id_} lives 900 s after Lambda was told to end it: look"):
        ours.end([id_])


def test_eight_gpus_may_take_longer_to_boot_than_one(client: Lambda, mine: Deployment) -> None:
    assert machines(client, mine).boot_deadline_s == 2700
