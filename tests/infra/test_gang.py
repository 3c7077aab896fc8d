"""The gang: all machines or none, in one zone, none twice, whatever the cloud refuses and whoever is killed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from infra.cluster import node_names
from infra.errors import AccessError, CapacityError, ProviderError, QuotaError, UnsupportedError
from infra.gang import Gang
from infra.gang_record import Record
from tests.infra.in_memory_cloud import (
    NOW,
    Cloud,
    Killed,
    WholeCloud,
    failing_to_end,
    killed_at,
    refusing,
    refusing_each,
    stopping,
)
from tests.infra.ordering import boot

ZONES = ("a", "b")
SIZES = (1, 2, 8, 64)


@pytest.fixture
def cloud() -> Cloud:
    return Cloud(room={"a": 64, "b": 64})


@pytest.fixture
def up_on(tmp_path: Path) -> Callable[..., Gang]:
    """A gang as a new process would make it: the record is read from its folder each time."""

    def make(cloud: Cloud, nodes: int, *, said: list[str] | None = None) -> Gang:
        record = Record(tmp_path / "gang", provider="fake", now=NOW)
        return Gang(
            machines=cloud,
            record=record,
            names=node_names(nodes),
            what="big-one on demand",
            boot=lambda name: boot(name, now=record.created_at, host_key=record.host_key(name)[0]),
            report=(said if said is not None else []).append,
            sleep=cloud.sleep,
            clock=cloud.clock,
        )

    return make


@pytest.fixture
def up(up_on: Callable[..., Gang], cloud: Cloud) -> Callable[..., Gang]:
    return functools.partial(up_on, cloud)


def kill(cloud: Cloud, name: str, *, during: Callable[[], object]) -> None:
    """`pulumi up` ends when node `name` was made, and nobody was told."""
    cloud.after_launch = killed_at(name)
    with pytest.raises(Killed):
        during()
    cloud.after_launch = lambda _order: None


def asked_for(cloud: Cloud, zone: str) -> list[str]:
    return [order.name for order in cloud.launches if order.zone == zone]


@pytest.mark.parametrize("nodes", SIZES)
def test_all_are_there_in_rank_order_in_one_zone(nodes: int, up: Callable[..., Gang], cloud: Cloud) -> None:
    machines = up(nodes).raise_in_one_of(ZONES)

    assert [machine.name for machine in machines] == node_names(nodes) == cloud.names
    assert {machine.zone for machine in machines} == {"a"}
    assert all(machine.state == "running" and machine.private_address for machine in machines)
    assert sorted(order.rank for order in cloud.launches) == list(range(nodes))
    assert len({order.token for order in cloud.launches}) == nodes


@pytest.mark.parametrize("nodes", SIZES)
def test_a_zone_with_room_for_one_fewer_keeps_nothing_and_the_next_gets_all(
    nodes: int, up: Callable[..., Gang], cloud: Cloud
) -> None:
    cloud.room["a"] = nodes - 1
    machines = up(nodes).raise_in_one_of(ZONES)
    assert {machine.zone for machine in machines} == {machine.zone for machine in cloud.billing} == {"b"}
    assert cloud.names == node_names(nodes)


@pytest.mark.parametrize("nodes", SIZES)
def test_no_zone_with_room_leaves_nothing_and_tells_each_zones_answer(
    nodes: int, up: Callable[..., Gang], cloud: Cloud
) -> None:
    cloud.room = {"a": nodes - 1, "b": nodes - 1}
    said: list[str] = []

    with pytest.raises(CapacityError) as refusal:
        up(nodes, said=said).raise_in_one_of(ZONES)

    assert cloud.billing == []
    for part in (f"{nodes} × big-one on demand", "a: no room in a", "b: no room in b", "nothing was kept", "try later"):
        assert part in str(refusal.value)
    assert any("can't be had in a, nothing is kept" in line for line in said)


def test_the_first_is_asked_for_alone(up: Callable[..., Gang], cloud: Cloud) -> None:
    cloud.room["a"] = 0
    up(8).raise_in_one_of(ZONES)
    assert asked_for(cloud, "a") == ["node-0"]


def test_a_machine_that_no_zone_ever_has_is_told_as_such(up: Callable[..., Gang], cloud: Cloud) -> None:
    cloud.before_launch = refusing(UnsupportedError("not offered here"))
    with pytest.raises(UnsupportedError, match="a: not offered here; b: not offered here"):
        up(2).raise_in_one_of(ZONES)
    cloud.before_launch = refusing(UnsupportedError("not offered here"), zones=("a",))
    cloud.room["b"] = 1
    with pytest.raises(CapacityError):  # which one zone at least may have later
        up(2).raise_in_one_of(ZONES)
    assert cloud.billing == []


@pytest.mark.parametrize("error", [QuotaError("limit 0"), AccessError("not allowed"), ProviderError("bad request")])
def test_a_final_refusal_of_the_fifth_of_eight_ends_the_others_and_asks_no_other_zone(
    error: ProviderError, up: Callable[..., Gang], cloud: Cloud
) -> None:
    cloud.before_launch = refusing(error, names=("node-4",))

    with pytest.raises(type(error), match=str(error)):
        up(8).raise_in_one_of(ZONES)

    assert cloud.billing == []
    assert asked_for(cloud, "b") == []


def test_a_final_reason_is_told_rather_than_the_capacity_that_is_missing_beside_it(
    up: Callable[..., Gang], cloud: Cloud
) -> None:
    cloud.before_launch = refusing_each(
        {"node-1": CapacityError("no room"), "node-2": QuotaError("limit 2"), "node-3": CapacityError("no room")}
    )
    with pytest.raises(QuotaError, match="limit 2"):
        up(4).raise_in_one_of(ZONES)


@pytest.mark.parametrize("name", ["node-0", "node-1"])
def test_a_call_that_failed_and_made_a_machine_that_shows_later_leaves_nothing(
    name: str, up: Callable[..., Gang], cloud: Cloud
) -> None:
    cloud.unseen = 4
    cloud.after_launch = refusing(ProviderError("time-out"), names=(name,))
    with pytest.raises(ProviderError, match="time-out"):
        up(2).raise_in_one_of(ZONES)
    assert cloud.billing == []


def test_a_machine_that_is_not_seen_yet_is_waited_for_and_not_made_again(up: Callable[..., Gang], cloud: Cloud) -> None:
    cloud.unseen = 5
    up(8).raise_in_one_of(ZONES)
    assert (cloud.names, len(cloud.launches)) == (node_names(8), 8)


def test_one_that_ends_by_itself_for_want_of_capacity_sends_the_gang_to_the_next_zone(
    up: Callable[..., Gang], cloud: Cloud
) -> None:
    cloud.dies = {"node-1": CapacityError("spot capacity was taken back")}

    def heal(order: object) -> None:
        if getattr(order, "zone", "") == "b":
            cloud.dies = {}

    cloud.before_launch = heal
    machines = up(2).raise_in_one_of(ZONES)
    assert {machine.zone for machine in cloud.billing} == {machine.zone for machine in machines} == {"b"}


def test_one_that_ends_by_itself_without_a_reason_is_named(up: Callable[..., Gang], cloud: Cloud) -> None:
    cloud.dies = {"node-1": None}
    with pytest.raises(ProviderError, match=r"node-1 \(i-\d\) ended by itself .* doesn't say why.*console"):
        up(2).raise_in_one_of(ZONES)
    assert cloud.billing == []


def test_one_that_stops_while_it_starts_is_ended_too_for_its_disk_bills(up: Callable[..., Gang], cloud: Cloud) -> None:
    gang = replace(up(2), sleep=stopping(cloud, "node-1"))
    with pytest.raises(ProviderError, match="node-1"):
        gang.raise_in_one_of(ZONES)
    assert cloud.billing == []


def test_the_boot_deadline_names_the_late_ones_and_leaves_nothing(up: Callable[..., Gang], cloud: Cloud) -> None:
    cloud.boots = False
    with pytest.raises(ProviderError, match=r"node-0 \(i-1\), node-1 \(i-2\) didn't start within 60 s.*pulumi up"):
        up(2).raise_in_one_of(ZONES)
    assert cloud.billing == []


@pytest.mark.parametrize("why", [CapacityError("no room"), QuotaError("limit 1")])
def test_what_can_not_be_ended_is_told_with_the_reason_and_no_other_zone_is_asked(
    why: ProviderError, up: Callable[..., Gang], cloud: Cloud
) -> None:
    cloud.before_launch = refusing(why, names=("node-1",))
    cloud.before_end = failing_to_end("node-0 (i-1) is ending since 1200 s")

    with pytest.raises(type(why)) as error:
        up(2).raise_in_one_of(ZONES)

    for part in (str(why), "node-0 (i-1) is ending", "make destroy", "may be billing"):
        assert part in str(error.value)
    assert asked_for(cloud, "b") == []


def test_an_answer_that_all_has_ended_is_not_believed_for_ever(up: Callable[..., Gang], cloud: Cloud) -> None:
    cloud.before_launch = refusing(CapacityError("no room"), names=("node-1",))
    cloud.end_lies = True
    with pytest.raises(CapacityError, match=r"i-1.*may be billing"):
        up(2).raise_in_one_of(ZONES)


@pytest.mark.parametrize("nodes", SIZES)
@pytest.mark.parametrize("moment", ["before_launch", "after_launch"])
@pytest.mark.parametrize("unseen", [0, 4])
def test_a_killed_up_is_finished_by_the_next_with_the_same_machines(
    nodes: int, moment: str, unseen: int, up: Callable[..., Gang], cloud: Cloud
) -> None:
    cloud.unseen = unseen
    setattr(cloud, moment, killed_at(f"node-{nodes // 2}"))
    with pytest.raises(Killed):
        up(nodes).raise_in_one_of(ZONES)
    made = {machine.id for machine in cloud.billing}
    assert len(made) < nodes or moment == "after_launch"
    setattr(cloud, moment, lambda _order: None)

    machines = up(nodes).raise_in_one_of(ZONES)

    assert cloud.names == node_names(nodes)
    assert made <= {machine.id for machine in machines} == {machine.id for machine in cloud.billing}


def test_a_gang_that_was_killed_in_the_second_zone_is_finished_there(up: Callable[..., Gang], cloud: Cloud) -> None:
    cloud.room["a"] = 0
    kill(cloud, "node-1", during=lambda: up(2).raise_in_one_of(ZONES))
    cloud.room["a"] = 64

    assert {machine.zone for machine in up(2).raise_in_one_of(ZONES)} == {"b"}
    assert len(asked_for(cloud, "a")) == 1


def test_machines_of_a_killed_try_in_a_zone_that_is_not_asked_for_any_more_are_ended(
    up: Callable[..., Gang], cloud: Cloud
) -> None:
    kill(cloud, "node-1", during=lambda: up(2).raise_in_one_of(["a"]))
    said: list[str] = []

    up(2, said=said).raise_in_one_of(["b"])

    assert {machine.zone for machine in cloud.billing} == {"b"}
    assert "ending 2 machine(s) of an earlier try" in said


def test_one_of_another_zone_that_shows_up_late_is_ended_and_not_taken_into_the_gang(
    up: Callable[..., Gang], cloud: Cloud
) -> None:
    cloud.unseen = 1  # the first look of the next up doesn't see it, the second does
    kill(cloud, "node-0", during=lambda: up(2).raise_in_one_of(["a"]))
    cloud.unseen = 0

    machines = up(2).raise_in_one_of(["b"])

    assert {machine.zone for machine in machines} == {machine.zone for machine in cloud.billing} == {"b"}


def test_fewer_nodes_than_the_killed_try_had_leaves_no_surplus(up: Callable[..., Gang], cloud: Cloud) -> None:
    kill(cloud, "node-3", during=lambda: up(4).raise_in_one_of(ZONES))
    up(2).raise_in_one_of(ZONES)
    assert cloud.names == node_names(2)


def test_a_machine_that_died_after_the_kill_is_another_one_after_at_most_one_failed_try(
    up: Callable[..., Gang], cloud: Cloud
) -> None:
    kill(cloud, "node-1", during=lambda: up(2).raise_in_one_of(ZONES))
    dead = cloud.end_by_hand("node-1")
    with pytest.raises(ProviderError, match=dead):
        up(2).raise_in_one_of(ZONES)
    assert cloud.billing == []
    assert [machine.name for machine in up(2).raise_in_one_of(ZONES)] == cloud.names == node_names(2)


def test_completing_replaces_the_dead_one_alone(up: Callable[..., Gang], cloud: Cloud) -> None:
    before = up(4).raise_in_one_of(ZONES)
    dead = cloud.end_by_hand("node-2")
    after = up(4).complete("a")
    assert [machine.id for machine in after if machine.name != "node-2"] == [
        machine.id for machine in before if machine.id != dead
    ]
    assert after[2].id != dead
    assert cloud.names == node_names(4)


def test_completing_ends_a_stopped_one_and_replaces_it(up: Callable[..., Gang], cloud: Cloud) -> None:
    up(2).raise_in_one_of(ZONES)
    stopped = cloud.of("node-1").id
    cloud.set(stopped, state="stopped")
    assert up(2).complete("a")[1].id != stopped
    assert cloud.names == node_names(2)


def test_completing_that_fails_leaves_what_was_there(up: Callable[..., Gang], cloud: Cloud) -> None:
    up(2).raise_in_one_of(ZONES)
    cloud.end_by_hand("node-1")
    cloud.room["a"] = 1
    with pytest.raises(CapacityError):
        up(2).complete("a")
    assert cloud.names == ["node-0"]


def test_one_that_died_while_it_started_is_another_one_in_the_next_completion(
    up: Callable[..., Gang], cloud: Cloud
) -> None:
    up(1).raise_in_one_of(ZONES)
    cloud.dies = {"node-1": None}
    with pytest.raises(ProviderError, match="node-1"):
        up(2).complete("a")
    cloud.dies = {}
    assert [machine.name for machine in up(2).complete("a")] == cloud.names


def test_one_that_was_seen_and_died_is_another_one_though_the_completion_failed(
    up: Callable[..., Gang], cloud: Cloud
) -> None:
    kill(cloud, "node-0", during=lambda: up(2).complete("a"))
    cloud.room["a"] = 1
    with pytest.raises(CapacityError):
        up(2).complete("a")
    dead, cloud.room["a"] = cloud.end_by_hand("node-0"), 2
    assert up(2).complete("a")[0].id != dead


def test_one_that_never_shows_is_asked_for_anew_by_the_next_completion(up: Callable[..., Gang], cloud: Cloud) -> None:
    up(2).raise_in_one_of(ZONES)
    cloud.end_by_hand("node-1")
    cloud.unseen = 10_000
    with pytest.raises(ProviderError, match="node-1"):
        up(2).complete("a")
    never_shown = cloud.end_by_hand("node-1")
    cloud.unseen = 0
    assert up(2).complete("a")[1].id != never_shown
    assert cloud.names == node_names(2)


# Clouds that make a gang by one call


@pytest.fixture
def whole() -> WholeCloud:
    return WholeCloud(room={"a": 2, "b": 4})


def test_a_gang_that_comes_whole_is_asked_for_once_in_each_zone(
    whole: WholeCloud, up_on: Callable[[Cloud, int], Gang]
) -> None:
    machines = up_on(whole, 3).raise_in_one_of(ZONES)
    assert [(machine.name, machine.zone) for machine in machines] == [(name, "b") for name in node_names(3)]
    assert [order.zone for order in whole.launches] == ["a"] * 3 + ["b"] * 3


def test_one_that_is_missing_of_it_is_not_made_alone(whole: WholeCloud, up_on: Callable[[Cloud, int], Gang]) -> None:
    before = {machine.id for machine in up_on(whole, 2).raise_in_one_of(ZONES)}
    whole.end_by_hand("node-1")
    after = up_on(whole, 2).mend("a")
    assert [machine.name for machine in after] == ["node-0", "node-1"]
    assert before.isdisjoint(machine.id for machine in after)
    assert whole.names == ["node-0", "node-1"]


def test_a_whole_gang_that_was_made_unheard_is_not_made_twice(
    whole: WholeCloud, up_on: Callable[[Cloud, int], Gang]
) -> None:
    whole.after_launch = killed_at("node-1")
    with pytest.raises(Killed):
        up_on(whole, 2).raise_in_one_of(ZONES)
    whole.after_launch = lambda _order: None
    up_on(whole, 2).raise_in_one_of(ZONES)
    assert whole.names == ["node-0", "node-1"]
    assert len(whole.launches) == 2
