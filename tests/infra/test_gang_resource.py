"""The gang as Pulumi's engine drives it: create, diff, read, update and delete, over machines in memory."""

from __future__ import annotations

import json
from typing import Any

import pulumi
import pytest

from infra import ssh_keys
from infra.errors import CapacityError, ProviderError
from infra.gang_record import Record, provider_of
from infra.providers.base import Deployment
from tests.infra.gang_engine import Engine, checkout, cloud, engine, later, provider
from tests.infra.in_memory_cloud import NOW, Cloud, FakeProvider, Killed, failing_to_end, killed_at, refusing

__all__ = ["checkout", "cloud", "engine", "provider"]


def test_the_outputs_tell_where_until_when_and_which_machines(engine: Engine, checkout: Deployment) -> None:
    state = engine.up()

    assert state["zone"] == "a"
    assert (state["created_at"], state["expires_at"]) == ("2026-03-01T12:00:00+00:00", "2026-03-01T13:00:00+00:00")
    assert state["pinned"] == {"image": "image-1"}
    assert [machine["name"] for machine in state["machines"]] == ["node-0", "node-1"]
    for machine in state["machines"]:
        private = checkout.gang_folder / "host_keys" / machine["name"]
        assert machine["host_key"] == ssh_keys.make_pair(private, comment="")
        assert machine["facts"] == {"interface": f"if-{machine['id']}"}


def test_no_private_key_and_no_token_is_in_the_outputs(engine: Engine, cloud: Cloud) -> None:
    text = json.dumps(engine.up())
    assert "PRIVATE" not in text
    assert all("PRIVATE" in order.boot.host_key and order.token not in text for order in cloud.launches)


def test_the_same_again_changes_nothing(engine: Engine, cloud: Cloud) -> None:
    engine.up()
    assert not engine.diff().changes
    engine.up()
    assert len(cloud.launches) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"price": {"usd_per_hour": 9.0}},
        {"lifetime_s": 60_000},
        {"zones": ["b"], "places": {"b": {"subnet": "subnet-b"}}},  # what is offered today has changed
        {"places": {"a": {"subnet": "subnet-a"}, "b": {"subnet": "another"}}},
    ],
)
def test_what_concerns_no_machine_that_runs_changes_nothing(changes: dict[str, Any], engine: Engine) -> None:
    engine.up()
    assert not engine.diff(**changes).changes


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"wish": {"instance": "bigger-one"}}, "wish"),
        ({"public_key": "ssh-ed25519 BBBB"}, "public_key"),
        ({"places": {"a": {"subnet": "another"}}}, "place"),
        ({"zones": ["b"], "zones_are_asked_for": True}, "zones"),
        ({"provider": "other"}, "provider"),
    ],
)
def test_what_machines_were_made_with_replaces_them(changes: dict[str, Any], why: str, engine: Engine) -> None:
    engine.up()
    assert engine.diff(**changes).replaces == [why]


def test_what_a_preview_does_not_know_yet_replaces_nothing(engine: Engine) -> None:
    engine.up()
    unknown = pulumi.output.Unknown()
    assert not engine.diff(wish={"instance": unknown}, places={"a": {"subnet": unknown}}).changes


def test_asking_for_another_zone_moves_the_gang(engine: Engine, cloud: Cloud) -> None:
    engine.up()
    engine.up(zones=["b"], zones_are_asked_for=True)
    assert {machine.zone for machine in cloud.billing} == {"b"}
    assert cloud.names == ["node-0", "node-1"]


def test_two_four_and_one_keep_those_that_stay(engine: Engine, cloud: Cloud) -> None:
    engine.up()
    two = engine.ids
    later(minutes=10)
    four = engine.up(nodes=4)
    assert engine.ids[:2] == two
    assert (four["created_at"], len(cloud.billing)) == ("2026-03-01T12:00:00+00:00", 4)
    engine.up(nodes=1)
    assert engine.ids == two[:1] == [machine.id for machine in cloud.billing]


def test_a_dead_one_is_replaced_and_the_lifetime_goes_on(engine: Engine, cloud: Cloud, provider: FakeProvider) -> None:
    engine.up()
    first, dead = engine.ids
    cloud.end_by_hand("node-1")
    later(minutes=30)
    provider.image = "image-2"

    diff = engine.diff(lifetime_s=60_000)
    state = engine.up(lifetime_s=60_000)

    assert (diff.changes, diff.replaces) == (True, [])
    assert engine.ids[0] == first
    assert engine.ids[1] != dead
    assert (state["created_at"], state["expires_at"]) == ("2026-03-01T12:00:00+00:00", "2026-03-01T13:00:00+00:00")
    assert state["pinned"] == {"image": "image-1"} == provider.asked[-1]["pinned"]


def test_a_refresh_tells_the_dead_one_and_up_replaces_it(engine: Engine, cloud: Cloud) -> None:
    engine.up()
    cloud.end_by_hand("node-0")
    engine.refresh()
    assert len(engine.ids) == 1
    engine.up()
    assert sorted(engine.ids) == sorted(machine.id for machine in cloud.billing)
    assert cloud.names == ["node-0", "node-1"]


def test_when_all_are_dead_they_are_replaced_in_any_zone_and_a_new_lifetime_begins(
    engine: Engine, cloud: Cloud, provider: FakeProvider
) -> None:
    engine.up()
    for name in ("node-0", "node-1"):
        cloud.end_by_hand(name)
    later(minutes=30)
    cloud.room["a"], provider.image = 0, "image-2"

    assert engine.diff().replaces == ["machines"]
    state = engine.up()

    assert (state["zone"], state["created_at"]) == ("b", "2026-03-01T12:30:00+00:00")
    assert state["pinned"] == {"image": "image-2"}


def test_when_all_are_dead_a_refresh_forgets_the_gang_and_a_new_lifetime_begins(engine: Engine, cloud: Cloud) -> None:
    engine.up()
    for name in ("node-0", "node-1"):
        cloud.end_by_hand(name)
    engine.refresh()
    assert engine.state is None
    later(minutes=30)
    assert engine.up()["created_at"] == "2026-03-01T12:30:00+00:00"


def test_an_expired_gang_is_replaced_even_while_its_machines_are_seen(engine: Engine, cloud: Cloud) -> None:
    engine.up()
    old = engine.ids
    later(hours=2)
    state = engine.up()
    assert state["created_at"] == "2026-03-01T14:00:00+00:00"
    assert not set(old) & {machine.id for machine in cloud.billing}


def test_a_create_that_finds_an_expired_gang_of_a_killed_one_ends_it_first(engine: Engine, cloud: Cloud) -> None:
    _kill(engine, cloud, "node-1")
    old = {machine.id for machine in cloud.billing}
    later(hours=2)
    assert engine.up()["created_at"] == "2026-03-01T14:00:00+00:00"
    assert not old & {machine.id for machine in cloud.billing}


def test_a_killed_create_is_finished_with_its_lifetime_and_its_image(
    engine: Engine, cloud: Cloud, provider: FakeProvider
) -> None:
    _kill(engine, cloud, "node-1")
    made = {machine.id for machine in cloud.billing}
    later(minutes=5)
    provider.image = "image-2"

    state = engine.up()

    assert set(engine.ids) == made
    assert (state["created_at"], state["pinned"]) == ("2026-03-01T12:00:00+00:00", {"image": "image-1"})


@pytest.mark.parametrize("changes", [{"wish": {"instance": "bigger-one"}}, {"lifetime_s": 7200}, {"public_key": "k"}])
def test_machines_of_a_killed_create_are_not_taken_for_what_is_asked_for_now(
    changes: dict[str, Any], engine: Engine, cloud: Cloud
) -> None:
    cloud.unseen = 1
    _kill(engine, cloud, "node-1")
    made = {machine.id for machine in cloud.billing}
    engine.up(**changes)
    assert not made & set(engine.ids)
    assert sorted(engine.ids) == sorted(machine.id for machine in cloud.billing)


def test_machines_of_a_killed_create_on_another_provider_are_ended_there(engine: Engine, cloud: Cloud) -> None:
    _kill(engine, cloud, "node-1")
    engine.up(provider="other", zones=["a"])
    assert cloud.billing == []


def test_machines_of_a_killed_create_are_ended_where_that_one_made_them(
    engine: Engine, cloud: Cloud, provider: FakeProvider
) -> None:
    _kill(engine, cloud, "node-1")
    provider.asked.clear()
    engine.up(wish={"instance": "big-one", "region": "another"})
    assert provider.asked[0]["wish"] == {"instance": "big-one"}
    assert provider.asked[-1]["wish"] == {"instance": "big-one", "region": "another"}


def test_another_provider_may_be_tried_where_one_had_no_capacity(engine: Engine, cloud: Cloud) -> None:
    cloud.room = {"a": 1, "b": 1}
    with pytest.raises(CapacityError):
        engine.up()
    assert engine.up(provider="other", zones=["a"])["zone"] == "a"


def _kill(engine: Engine, cloud: Cloud, name: str) -> None:
    cloud.after_launch = killed_at(name)
    with pytest.raises(Killed):
        engine.up()
    cloud.after_launch = lambda _order: None


def test_a_failed_create_leaves_nothing_and_the_next_has_a_lifetime_of_its_own(engine: Engine, cloud: Cloud) -> None:
    cloud.before_launch = refusing(CapacityError("no room"), names=("node-1",))
    with pytest.raises(CapacityError):
        engine.up()
    assert cloud.billing == []
    later(minutes=30)
    cloud.before_launch = lambda _order: None
    assert engine.up()["created_at"] == "2026-03-01T12:30:00+00:00"


def test_a_killed_scale_up_is_finished_without_a_second_machine(engine: Engine, cloud: Cloud) -> None:
    engine.up()
    two = engine.ids
    cloud.after_launch = killed_at("node-3")
    with pytest.raises(Killed):
        engine.up(nodes=4)
    cloud.after_launch = lambda _order: None
    engine.up(nodes=4)
    assert engine.ids[:2] == two
    assert sorted(engine.ids) == sorted(machine.id for machine in cloud.billing)


def test_a_scale_up_without_capacity_leaves_the_two_that_work(engine: Engine, cloud: Cloud) -> None:
    engine.up()
    two = engine.ids
    cloud.room["a"] = 2
    with pytest.raises(CapacityError):
        engine.up(nodes=3)
    assert [machine.id for machine in cloud.billing] == two == engine.ids


def test_deleting_ends_the_recorded_and_the_unrecorded_and_remembers_where_it_was(
    engine: Engine, cloud: Cloud, checkout: Deployment
) -> None:
    engine.up()
    cloud.after_launch = killed_at("node-2")
    with pytest.raises(Killed):
        engine.up(nodes=3)
    cloud.set(cloud.of("node-2").id, state="stopped")
    cloud.end_by_hand("node-0")  # gone already: success
    engine.destroy()
    assert cloud.billing == []
    record = Record(checkout.gang_folder, provider="another", now=NOW)
    assert (record.is_used, record.zone, provider_of(checkout.gang_folder)) == (False, "a", "fake")


def test_deleting_works_without_a_record_that_can_be_read(engine: Engine, cloud: Cloud, checkout: Deployment) -> None:
    engine.up()
    (checkout.gang_folder / "gang.json").write_text("{")
    engine.destroy()
    assert cloud.billing == []


def test_a_deletion_that_fails_keeps_the_record(engine: Engine, cloud: Cloud, checkout: Deployment) -> None:
    engine.up()
    cloud.before_end = failing_to_end("node-0 (i-1) is ending")
    with pytest.raises(ProviderError, match="i-1"):
        engine.destroy()
    assert (checkout.gang_folder / "gang.json").exists()


def test_an_error_is_one_sentence_without_a_traceback(engine: Engine, cloud: Cloud) -> None:
    cloud.before_launch = refusing(ProviderError("bad request"))
    with pytest.raises(ProviderError) as error:
        engine.up()
    assert error.value.__cause__ is None
    assert "\n" not in str(error.value)
    assert "PRIVATE" not in str(error.value)
