"""The gang's machines against the stand-in of Compute Engine: started once, found, ended, whatever goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from infra.cluster import node_names
from infra.errors import AccessError, CapacityError, ProviderError, QuotaError, UnsupportedError
from infra.gang import Gang
from infra.gang_record import Record
from infra.providers.base import Deployment
from infra.providers.gcp import api, names
from infra.providers.gcp.machines import GcpMachines
from tests.infra.gcp.asking import PINNED, clouds_wish, deployment, order
from tests.infra.ordering import boot
from tests.stand_ins.gcp.client import StandIn
from tests.stand_ins.gcp.fixtures import gcp, gcp_key  # noqa: F401

A, B = "us-central1-a", "us-central1-b"
TYPE = "g2-standard-8"


class Clock:
    """Time passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, gcp: StandIn, mine: Deployment) -> Clock:  # noqa: F811, ARG001
    """The client of this process waits by it."""
    made = Clock()
    client = api.connect(mine)
    monkeypatch.setattr(client, "sleep", made.sleep)
    monkeypatch.setattr(client, "clock", made)
    return made


@pytest.fixture
def wish(gcp: StandIn, clock: Clock, mine: Deployment) -> dict[str, Any]:  # noqa: F811, ARG001
    return clouds_wish(gcp, mine)


@pytest.fixture
def machines(mine: Deployment, wish: dict[str, Any]) -> GcpMachines:
    return of(mine, wish)


def of(whose: Deployment, wish: dict[str, Any], **pinned: Any) -> GcpMachines:
    return GcpMachines(whose, api.connect(whose), wish=wish, places={}, pinned={**PINNED, **pinned})


def now_order(name: str = "node-0", **changes: Any) -> Any:
    return order(name, now=datetime.now(UTC), **changes)


@pytest.fixture
def gang(mine: Deployment, machines: GcpMachines, clock: Clock) -> Callable[..., Gang]:
    def make(nodes: int = 2, using: GcpMachines | None = None) -> Gang:
        return Gang(
            machines=using or machines,
            record=Record(mine.gang_folder, provider="gcp", now=datetime.now(UTC)),
            names=node_names(nodes),
            what=TYPE,
            boot=lambda name: boot(name, now=datetime.now(UTC)),
            report=lambda _: None,
            sleep=clock.sleep,
            clock=clock,
        )

    return make


def there(gcp: StandIn) -> list[str]:  # noqa: F811
    return [path for path in gcp.leftovers() if "/instances/" in path]


def test_launch_find_end(gcp: StandIn, machines: GcpMachines) -> None:  # noqa: F811
    ids = [machines.launch(now_order(name)) for name in ("node-0", "node-1")]
    found = {machine.name: machine for machine in machines.find()}
    assert [found[name].id for name in ("node-0", "node-1")] == ids
    assert all(machine.state == "running" and machine.zone == A for machine in found.values())
    assert found["node-0"].public_address
    assert not found["node-1"].public_address
    assert found["node-0"].private_address != found["node-1"].private_address
    machines.end(ids)
    assert there(gcp) == []
    assert not [path for path in gcp.leftovers() if "/disks/" in path]
    machines.end(ids)  # one that isn't there has ended


def test_the_same_order_again_is_the_same_machine(gcp: StandIn, machines: GcpMachines) -> None:  # noqa: F811
    assert machines.launch(now_order()) == machines.launch(now_order())
    assert len(there(gcp)) == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_around_the_call_makes_no_second_machine(
    gcp: StandIn,  # noqa: F811
    machines: GcpMachines,
    when: Any,
) -> None:
    """The first caller never gets its answer; the second comes with the token that was on disk."""
    gcp.hang("compute.instances.insert", when=when)
    lost = threading.Thread(target=lambda: _ignoring(lambda: machines.launch(now_order())), daemon=True)
    lost.start()
    gcp.wait_until_hanging("compute.instances.insert")
    id_ = machines.launch(now_order())
    gcp.release(execute=True)
    lost.join(60)
    assert [path.rpartition("/")[2] for path in there(gcp)] == [id_.partition("/")[2]]


def _ignoring(call: Callable[[], object]) -> None:
    try:
        call()
    except ProviderError:
        return


def test_another_token_under_the_same_name_adopts_ours(gcp: StandIn, machines: GcpMachines) -> None:  # noqa: F811
    first = machines.launch(now_order(token="1" * 32))
    assert machines.launch(now_order(token="2" * 32)) == first
    assert len(there(gcp)) == 1


def test_a_token_whose_machine_has_gone_makes_a_new_one(gcp: StandIn, machines: GcpMachines) -> None:  # noqa: F811
    id_ = machines.launch(now_order())
    machines.end([id_])
    assert machines.launch(now_order()) == id_
    assert len(there(gcp)) == 1


def test_a_machine_that_is_off_makes_room_for_its_successor(gcp: StandIn, machines: GcpMachines) -> None:  # noqa: F811
    id_ = machines.launch(now_order(token="1" * 32))
    before = gcp.resource(f"zones/{A}/instances/{id_.partition('/')[2]}")["id"]
    client = api.connect(machines._deployment)
    path = f"projects/{client.project}/zones/{A}/instances/{id_.partition('/')[2]}/stop"
    client.wait(
        client.insert(path, None, doing="stopping", request_id="c0ffee00-0000-4000-8000-000000000001"), doing=""
    )
    assert machines.find()[0].state == "stopped"
    machines.launch(now_order(token="2" * 32))
    after = gcp.resource(f"zones/{A}/instances/{id_.partition('/')[2]}")["id"]
    assert before != after
    assert machines.find()[0].state == "running"


def test_a_name_that_another_checkout_has_is_refused(
    gcp: StandIn,  # noqa: F811
    machines: GcpMachines,
    wish: dict[str, Any],
    tmp_path: Path,
) -> None:
    theirs = deployment(tmp_path / "theirs")
    of(theirs, wish).launch(now_order())
    with pytest.raises(ProviderError, match="isn't of this checkout"):
        machines.launch(now_order())
    assert machines.find() == []
    assert len(there(gcp)) == 1


@pytest.mark.parametrize(
    ("code", "kind"),
    [("ZONE_RESOURCE_POOL_EXHAUSTED", CapacityError), ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", CapacityError)],
)
def test_no_capacity_is_said_by_launch(
    gcp: StandIn,  # noqa: F811
    machines: GcpMachines,
    code: str,
    kind: type[Exception],
) -> None:
    gcp.set_capacity(A, TYPE, machines=0, code=code)
    with pytest.raises(kind, match="node-0 in us-central1-a"):
        machines.launch(now_order())
    assert there(gcp) == []


def test_quota_zero_is_final_and_names_its_metric(gcp: StandIn, machines: GcpMachines) -> None:  # noqa: F811
    gcp.set_quota("NVIDIA_L4_GPUS", 0, region="us-central1")
    with pytest.raises(QuotaError, match=r"NVIDIA-L4-GPUS|NVIDIA_L4_GPUS"):
        machines.launch(now_order())


def test_a_zone_that_never_has_it(gcp: StandIn, machines: GcpMachines) -> None:  # noqa: F811
    gcp.refuse_as_unsupported(A, TYPE)
    gcp.offer(TYPE, zones=[A, B])
    for zone in (A, "us-central1-f"):
        with pytest.raises(UnsupportedError):
            machines.launch(now_order(zone=zone))


def test_the_gang_goes_to_the_zone_that_has_all_of_it(gcp: StandIn, gang: Callable[..., Gang]) -> None:  # noqa: F811
    gcp.set_capacity(A, TYPE, machines=3)
    found = gang(4).raise_in_one_of([A, B])
    assert [machine.name for machine in found] == ["node-0", "node-1", "node-2", "node-3"]
    assert {machine.zone for machine in found} == {B}
    assert len(there(gcp)) == 4


def test_a_quota_short_by_one_leaves_nothing(gcp: StandIn, gang: Callable[..., Gang]) -> None:  # noqa: F811
    gcp.set_quota("NVIDIA_L4_GPUS", 3, region="us-central1")
    with pytest.raises(QuotaError, match="is 3"):
        gang(4).raise_in_one_of([A, B])
    assert there(gcp) == []


def test_no_zone_has_it(gcp: StandIn, gang: Callable[..., Gang]) -> None:  # noqa: F811
    for zone in (A, B):
        gcp.set_capacity(zone, TYPE, machines=1)
    with pytest.raises(CapacityError, match=f"{A}: .*{B}: "):
        gang(2).raise_in_one_of([A, B])
    assert there(gcp) == []


def test_what_was_just_made_may_be_unseen(gcp: StandIn, gang: Callable[..., Gang]) -> None:  # noqa: F811
    gcp.hide_new("compute.instances.insert", reads=4, times=2)
    assert len(gang(2).raise_in_one_of([A])) == 2
    assert len(there(gcp)) == 2


def test_throttling_is_waited_out(gcp: StandIn, machines: GcpMachines) -> None:  # noqa: F811
    for code in (403, 429):
        gcp.throttle("compute.instances.insert", times=2, code=code)  # type: ignore[arg-type]
    machines.launch(now_order())
    assert len(there(gcp)) == 1


def test_a_token_that_expires_in_the_middle_is_renewed(gcp: StandIn, gang: Callable[..., Gang]) -> None:  # noqa: F811
    gcp.expire_tokens(after_calls=3)
    assert len(gang(2).raise_in_one_of([A])) == 2


def test_credentials_that_are_withdrawn_in_the_middle(gcp: StandIn, gang: Callable[..., Gang]) -> None:  # noqa: F811
    """What was made can't be ended without them: the error says so, and the next try finishes it."""
    gcp.revoke_key(after_calls=6)
    with pytest.raises(AccessError, match=r"gcloud auth application-default login.*fab leftovers --remove"):
        gang(2).raise_in_one_of([A])


@pytest.mark.parametrize("how", ["malformed", "empty"])
def test_an_answer_that_is_none_isnt_nothing(gcp: StandIn, machines: GcpMachines, how: Any) -> None:  # noqa: F811
    machines.launch(now_order())
    gcp.spoil("compute.instances.aggregatedList", how)
    with pytest.raises(ProviderError, match="can't be used"):
        machines.find()


def test_a_500_during_the_delete_is_tried_again(gcp: StandIn, machines: GcpMachines) -> None:  # noqa: F811
    id_ = machines.launch(now_order())
    gcp.fail("compute.instances.delete", code=500, times=2)
    machines.end([id_])
    assert there(gcp) == []


def test_a_delete_that_is_refused_for_good_doesnt_hide_the_others(
    gcp: StandIn,  # noqa: F811
    machines: GcpMachines,
) -> None:
    ids = [machines.launch(now_order(name)) for name in ("node-0", "node-1", "node-2")]
    gcp.fail("compute.instances.delete", code=403, reason="forbidden", message="no", times=1)
    with pytest.raises(ProviderError, match=f"ending {ids[0]}"):
        machines.end(ids)
    assert len(there(gcp)) == 1


def test_end_waits_until_it_is_gone(gcp: StandIn, machines: GcpMachines) -> None:  # noqa: F811
    id_ = machines.launch(now_order())
    gcp.stop_slowly(reads=20)
    machines.end([id_])
    assert there(gcp) == []


def test_a_machine_that_stays_is_told(gcp: StandIn, machines: GcpMachines) -> None:  # noqa: F811
    id_ = machines.launch(now_order())
    gcp.stop_slowly(reads=10**6)
    with pytest.raises(ProviderError, match=f"{id_} is there 1200 s"):
        machines.end([id_])


def test_google_ends_the_machine_before_the_guard_is_due(gcp: StandIn, machines: GcpMachines) -> None:  # noqa: F811
    machines.launch(now_order(lifetime_s=600))
    gcp.let_time_pass(500)
    assert len(there(gcp)) == 1
    gcp.let_time_pass(20)
    assert [path for path in gcp.leftovers() if "networks" not in path] == []


def test_a_preempted_machine_is_gone_and_its_disk_too(
    gcp: StandIn,  # noqa: F811
    mine: Deployment,
    wish: dict[str, Any],
) -> None:
    spot = of(mine, {**wish, "provisioning": "SPOT"})
    id_ = spot.launch(now_order())
    gcp.preempt(A, id_.partition("/")[2])
    gcp.let_time_pass(60)
    assert spot.find([id_]) == []
    assert not [path for path in gcp.leftovers() if "/disks/" in path]


def test_machines_of_another_stack_arent_ours(
    gcp: StandIn,  # noqa: F811
    machines: GcpMachines,
    wish: dict[str, Any],
    mine: Deployment,
) -> None:
    other = of(deployment(mine.root, "gcp2"), wish)
    other.launch(now_order())
    assert machines.find() == []
    assert names.stem(mine) not in there(gcp)[0]


def test_flex_start_and_64_nodes(
    gcp: StandIn,  # noqa: F811
    mine: Deployment,
    wish: dict[str, Any],
    gang: Callable[..., Gang],
) -> None:
    flex = of(mine, {**wish, "provisioning": "FLEX_START", "wait_s": 7200})
    assert flex.boot_deadline_s > 7200
    found = gang(64, flex).raise_in_one_of([A])
    assert [machine.name for machine in found] == node_names(64)
    assert len(there(gcp)) == 64


@pytest.fixture(autouse=True)
def _nothing_hangs_at_the_end(gcp: StandIn) -> Iterator[None]:  # noqa: F811
    yield
    gcp.release(execute=False)
