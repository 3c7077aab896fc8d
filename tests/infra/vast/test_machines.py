"""Vast.ai's machines through its API's stand-in: none twice, none lost, none dearer than shown, none that bills on."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from infra.errors import AccessError, CapacityError, ProviderError, QuotaError
from infra.gang import Gang
from infra.gang_record import Record
from infra.providers.base import Deployment
from infra.providers.vast import leftovers, plan
from infra.providers.vast.api import Vast
from infra.providers.vast.machines import VastMachines
from tests.infra.ordering import boot
from tests.infra.vast.asking import machines, order
from tests.stand_ins.vast.server import KEY, StandIn

CREATE, DESTROY, LIST = r"/api/v0/asks/\d+/", r"/api/v0/instances/\d+/", "/api/v1/instances/"


def gang(ours: VastMachines, mine: Deployment) -> Gang:
    ticks = iter(range(0, 10**9, 60))
    return Gang(
        machines=ours,
        record=Record(mine.gang_folder, provider="vast", now=datetime.now(UTC)),
        names=("node-0",),
        what="8 × H100 on demand",
        boot=boot,
        report=lambda _: None,
        sleep=lambda _: None,
        clock=lambda: next(ticks),
    )


def creates(cloud: StandIn) -> int:
    return len([path for method, path in cloud.calls if method == "PUT"])


# Taking an offer


def test_the_cheapest_offer_is_taken_with_our_start_and_our_marks(
    cloud: StandIn, client: Vast, mine: Deployment
) -> None:
    cloud.offer(dph_base=17.0)
    cheap = cloud.offer(dph_base=15.0, geolocation="Sweden, SE")
    cloud.offer(dph_base=14.0, storage_cost=18.0)  # its disk makes it $19
    id_ = machines(client, mine).launch(order())
    assert cloud.instances[id_].told["_offer"] == cheap
    request = cloud.instances[id_].request
    assert request["label"] == f"trainstack/trainstack/vast/{mine.owner}/node-0/{'0' * 32}/anywhere"
    assert (request["runtype"], request["onstart"], request["args"][0]) == ("args", "bash", "-c")
    assert request["env"]["-p 22:22"] == "1"
    assert (request["disk"], request["image"], request["cancel_unavail"]) == (200, plan.IMAGE, True)
    assert "price" not in request


def test_an_offer_that_is_not_what_was_asked_for_is_not_taken(cloud: StandIn, client: Vast, mine: Deployment) -> None:
    for lack in (
        {"num_gpus": 4},
        {"gpu_name": "H100 PCIE"},
        {"gpu_ram": 40000},
        {"verification": "unverified"},
        {"hosting_type": 0},
        {"reliability": 0.97},
        {"direct_port_count": 0},
        {"disk_space": 100.0},
        {"duration": 3600.0},
        {"cuda_max_good": 12.9},
        {"inet_down": 100.0},
        {"cpu_cores_effective": 8.0},
        {"cpu_arch": "arm64"},
        {"external": True},
        {"rented": True},
    ):
        cloud.offer(**lack)
    with pytest.raises(CapacityError, match=r"^Vast.ai has no on-demand offer of 8 × H100 with 200 GiB"):
        machines(client, mine).launch(order())
    assert cloud.instances == {}


def test_a_country_is_a_filter(cloud: StandIn, client: Vast, mine: Deployment) -> None:
    cloud.offer(dph_base=15.0)
    swedish = cloud.offer(geolocation="Stockholm, SE")
    id_ = machines(client, mine, region="SE").launch(order())
    assert cloud.instances[id_].told["_offer"] == swedish


def test_offers_that_others_took_give_way_to_the_next(cloud: StandIn, client: Vast, mine: Deployment) -> None:
    gone = [cloud.offer(dph_base=15.0), cloud.offer(dph_base=15.5)]
    free = cloud.offer(dph_base=16.5)
    cloud.taken = {gone[0]}
    cloud.fail("PUT", f"/api/v0/asks/{gone[1]}/", status=404, body=b'{"error": "invalid_args", "msg": "no_such_ask"}')
    id_ = machines(client, mine).launch(order())
    assert cloud.instances[id_].told["_offer"] == free
    assert creates(cloud) == 3


def test_when_all_went_to_others_that_is_said_after_several_tries(
    cloud: StandIn, client: Vast, mine: Deployment
) -> None:
    cloud.taken = {cloud.offer() for _ in range(20)}
    with pytest.raises(CapacityError, match=r"^8 offer\(s\) went to others meanwhile, the last: node-0 from Vast.ai's"):
        machines(client, mine).launch(order())
    assert (creates(cloud), cloud.instances) == (8, {})


def test_nothing_dearer_than_shown_is_taken(cloud: StandIn, client: Vast, mine: Deployment) -> None:
    cloud.offer(dph_base=18.0)
    with pytest.raises(CapacityError, match=r"costs \$18.05 per hour, more than 10 % above the \$16.05 that were"):
        machines(client, mine).launch(order())
    cloud.taken = {cloud.offer()}
    with pytest.raises(CapacityError, match=r"1 offer\(s\) went to others"):
        machines(client, mine).launch(order())
    assert cloud.instances == {}


def test_without_a_price_that_was_shown_nothing_is_asked_for(cloud: StandIn, client: Vast, mine: Deployment) -> None:
    ours = machines(client, mine)
    (mine.key_folder / "usd_per_hour_shown").unlink()
    with pytest.raises(ProviderError, match="doesn't tell the price that was shown"):
        ours.launch(order())
    assert cloud.calls == []


@pytest.mark.parametrize(
    ("promise", "told"),
    [
        ({"dph_total": 19.0}, r"costs \$19.00 per hour, more than 10 % above"),
        ({"num_gpus": 7}, r"has 7 GPU\(s\), and 8"),
    ],
)
def test_a_machine_that_is_not_as_promised_is_ended(
    promise: dict[str, Any], told: str, cloud: StandIn, client: Vast, mine: Deployment
) -> None:
    cloud.offer()
    cloud.breaks_promises = promise
    with pytest.raises(ProviderError, match=rf"^node-0 \(\d+\) {told}.*: it was ended"):
        machines(client, mine).launch(order())
    assert len(cloud.instances) == 1
    assert cloud.billing() == []


# Bids


def test_a_bid_is_above_the_lowest_and_told_with_the_request(cloud: StandIn, client: Vast, mine: Deployment) -> None:
    cloud.offer()
    cloud.offer(min_bid=None, dph_base=1.0)
    id_ = machines(client, mine, shown_usd=9.65, market="spot").launch(order())
    assert cloud.instances[id_].request["price"] == 9.6
    assert cloud.instances[id_].told["dph_total"] == pytest.approx(9.65)


def test_the_instance_that_a_refused_bid_left_is_ended(cloud: StandIn, client: Vast, mine: Deployment) -> None:
    cloud.offer()
    ours = machines(client, mine, shown_usd=9.65, market="spot")
    other = Deployment(root=mine.root, stack="other")
    corpse = machines(client, other, shown_usd=9.65, market="spot").launch(order())
    cloud.stop(corpse)
    cloud.offer()
    body = b'{"success": false, "error": "invalid_price", "msg": "Bid too low.", "new_contract": %s}' % corpse.encode()
    cloud.fail("PUT", CREATE, status=400, body=body)
    with pytest.raises(CapacityError, match=r"Bid too low \(invalid_price\); what it made all the same was ended"):
        ours.launch(order())
    assert cloud.billing() == []


def test_the_lowest_bid_rose_meanwhile_and_the_next_offer_is_taken(
    cloud: StandIn, client: Vast, mine: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    risen, free = cloud.offer(min_bid=7.9), cloud.offer()
    search = client.search

    def then_rises(query: dict[str, Any]) -> Any:
        found = search(query)
        cloud.offers[risen]["min_bid"] = 12.0
        return found

    monkeypatch.setattr(client, "search", then_rises)
    id_ = machines(client, mine, shown_usd=9.53, market="spot").launch(order())
    assert cloud.instances[id_].told["_offer"] == free
    assert len(cloud.instances) == 2
    assert cloud.billing() == [id_]


def test_outbid_is_no_capacity_and_bills_its_disk(cloud: StandIn, client: Vast, mine: Deployment) -> None:
    cloud.offer()
    ours = machines(client, mine, shown_usd=9.65, market="spot")
    id_ = ours.launch(order())
    gang(ours, mine).complete(plan.ANYWHERE)
    cloud.stop(id_)
    (machine,) = ours.find()
    assert (machine.state, type(machine.fault)) == ("stopped", CapacityError)
    assert str(machine.fault).startswith(f"node-0 ({id_}) was outbid and stopped")
    (left,) = leftovers.find(mine, client)
    assert left.usd_per_hour == pytest.approx(0.05)


# Calls whose answer never came


@pytest.mark.parametrize(
    "fault",
    [{"status": 0}, {"status": 500}, {"status": 200, "body": b""}, {"status": 200, "body": b'{"success": true}'}],
)
@pytest.mark.parametrize("unseen", [0, 3])
def test_a_machine_whose_answer_never_came_is_adopted(
    fault: dict[str, Any], unseen: int, cloud: StandIn, client: Vast, mine: Deployment
) -> None:
    cloud.offer()
    cloud.offer()
    cloud.unseen = unseen
    cloud.fail("PUT", CREATE, executes=True, **fault)
    assert [machines(client, mine).launch(order())] == cloud.billing()
    assert creates(cloud) == 1


@pytest.mark.parametrize("status", [0, 500])
def test_one_that_was_not_made_is_not_asked_for_blindly(
    status: int, cloud: StandIn, client: Vast, mine: Deployment
) -> None:
    cloud.offer()
    cloud.offer()
    cloud.fail("PUT", CREATE, status=status)
    with pytest.raises(ProviderError):
        machines(client, mine).launch(order())
    assert (cloud.instances, creates(cloud)) == ({}, 1)


def test_the_same_order_twice_is_one_machine(cloud: StandIn, client: Vast, mine: Deployment) -> None:
    cloud.offer()
    cloud.offer()
    ours = machines(client, mine)
    assert ours.launch(order()) == ours.launch(order())
    assert ours.launch(order(token="1" * 32)) not in (ours.launch(order()), None)
    assert len(cloud.instances) == 2


def test_a_machine_whose_answer_never_came_and_that_is_seen_too_late_is_ended_by_the_gang(
    cloud: StandIn, client: Vast, mine: Deployment
) -> None:
    cloud.offer()
    cloud.unseen = 9
    cloud.fail("PUT", CREATE, status=0, executes=True)
    with pytest.raises(ProviderError, match="didn't answer"):
        gang(machines(client, mine), mine).raise_in_one_of([plan.ANYWHERE])
    assert len(cloud.instances) == 1
    assert cloud.billing() == []


# Refusals


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, b'{"success": false, "error": "auth_error", "msg": "Invalid user key"}', AccessError),
        (403, b'{"success": false, "error": "invalid_args", "msg": "Not your own."}', AccessError),
        (400, b'{"success": false, "error": "invalid_args", "msg": "Insufficient credit"}', QuotaError),
        (400, b'{"success": false, "error": "invalid_args", "msg": "Invalid args"}', ProviderError),
        (200, b'{"success": false, "error": "invalid_args", "msg": "Invalid args"}', ProviderError),
    ],
)
def test_refusals_are_told_apart(
    status: int, body: bytes, kind: type[ProviderError], cloud: StandIn, client: Vast, mine: Deployment
) -> None:
    offer = cloud.offer()
    cloud.fail("PUT", CREATE, status=status, body=body)
    with pytest.raises(ProviderError, match=rf"^node-0 from Vast.ai's offer {offer}: ") as error:
        machines(client, mine).launch(order())
    assert type(error.value) is kind
    assert creates(cloud) == 1


def test_too_many_requests_are_waited_out_though_the_body_is_plain_text(
    cloud: StandIn, client: Vast, mine: Deployment
) -> None:
    cloud.offer()
    for method, path in (("PUT", CREATE), ("GET", LIST), ("POST", "/api/v0/bundles/")):
        cloud.fail(method, path, status=429, body=b"API requests too frequent: endpoint threshold=4.5", times=2)
    assert [machines(client, mine).launch(order())] == cloud.billing()


def test_calls_keep_the_published_intervals(cloud: StandIn, mine: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.undo()  # of the fixture, which waits for nothing
    cloud.clock = lambda: now
    cloud.every_s = {"list": 1.0, "create": 4.5, "destroy": 3.0, "search": 6.0}
    for _ in range(3):
        cloud.offer()
    ours = machines(Vast(cloud.url, KEY, sleep=sleep), mine)
    ours.end([ours.launch(order(f"node-{rank}", token=f"{rank:032}")) for rank in range(3)])
    assert (len(cloud.instances), cloud.billing(), cloud.too_often) == (3, [], 0)


# The gang's life


def test_a_gang_of_one_comes_up_is_reached_by_its_mapped_port_and_its_bill_stops(
    cloud: StandIn, client: Vast, mine: Deployment
) -> None:
    now = 0.0
    cloud.clock = lambda: now
    cloud.offer()
    made = gang(machines(client, mine), mine)
    (machine,) = made.raise_in_one_of([plan.ANYWHERE])
    assert (machine.name, machine.zone, machine.state) == ("node-0", plan.ANYWHERE, "running")
    assert (machine.public_address, machine.public_port) == ("198.51.100.1", 40001)
    now = 3600.0
    assert cloud.bill() == pytest.approx(16.05)
    made.end_all()
    now = 7200.0
    assert cloud.bill() == pytest.approx(16.05)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"actual_status": "exited", "status_msg": "Error 137"}, r"is exited on its host \(Error 137\)"),
        ({"actual_status": "offline"}, "is offline on its host"),
        ({"actual_status": "created", "status_msg": "x: OCI runtime create failed: y"}, "OCI runtime create failed"),
    ],
)
def test_a_machine_that_will_never_run_is_ended_and_named(
    change: dict[str, Any], told: str, cloud: StandIn, client: Vast, mine: Deployment
) -> None:
    cloud.offer()
    cloud.breaks_promises = change
    with pytest.raises(ProviderError, match=told):
        gang(machines(client, mine), mine).raise_in_one_of([plan.ANYWHERE])
    assert cloud.billing() == []


def test_a_host_that_was_not_heard_for_a_moment_does_not_cost_the_machine(
    cloud: StandIn, client: Vast, mine: Deployment
) -> None:
    cloud.offer()
    ours = machines(client, mine)
    (machine,) = gang(ours, mine).raise_in_one_of([plan.ANYWHERE])
    cloud.instances[machine.id].told["actual_status"] = "unknown"
    (seen,) = ours.find()
    assert seen.lives


def test_the_list_is_read_to_its_last_page(cloud: StandIn, client: Vast, mine: Deployment) -> None:
    for _ in range(61):
        cloud.offer()
    ours = machines(client, mine)
    ids = [ours.launch(order(f"node-{rank}", token=f"{rank:032}")) for rank in range(61)]
    cloud.calls.clear()
    assert sorted(machine.id for machine in ours.find()) == sorted(ids)
    assert cloud.calls == [("GET", LIST)] * 3
    ours.end(ids)
    assert cloud.billing() == []


def test_one_that_does_not_end_is_named(cloud: StandIn, client: Vast, mine: Deployment) -> None:
    cloud.offer()
    ours = machines(client, mine)
    id_ = ours.launch(order())
    cloud.ends = 10**6
    with pytest.raises(ProviderError, match=rf"{id_} is running 600 s after Vast.ai was told to end it"):
        ours.end([id_])


def test_the_others_end_though_one_is_refused(cloud: StandIn, client: Vast, mine: Deployment) -> None:
    for _ in range(3):
        cloud.offer()
    ours = machines(client, mine)
    ids = [ours.launch(order(f"node-{rank}", token=f"{rank:032}")) for rank in range(3)]
    cloud.fail("DELETE", f"/api/v0/instances/{ids[0]}/", status=403, body=b"{}")
    with pytest.raises(AccessError, match=f"ending Vast.ai instance {ids[0]}"):
        ours.end([*ids, "1"])
    assert cloud.billing() == [ids[0]]


def test_a_stack_of_another_checkout_is_not_found(
    cloud: StandIn, client: Vast, mine: Deployment, tmp_path: Path
) -> None:
    cloud.offer()
    cloud.offer()
    theirs = machines(client, Deployment(root=tmp_path, stack="vast")).launch(order())
    ours = machines(client, mine)
    assert ours.find() == []
    assert ours.launch(order()) != theirs
    (seen,) = [machine for machine in ours.find([theirs]) if machine.id == theirs]
    assert seen.lives
