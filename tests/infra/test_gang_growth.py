"""A gang that runs and is changed: what fails leaves nothing new on the bill, and what lived lives on as it was."""

from __future__ import annotations

import shutil

import pytest

from infra.errors import CapacityError, ProviderError, QuotaError
from infra.providers.base import Deployment
from tests.infra.gang_engine import Engine, checkout, cloud, engine, provider
from tests.infra.in_memory_cloud import Cloud, refusing, refusing_each

__all__ = ["checkout", "cloud", "engine", "provider"]


def ids(cloud: Cloud) -> set[str]:
    return {machine.id for machine in cloud.billing}


@pytest.mark.parametrize("error", [CapacityError("full"), QuotaError("no more"), ProviderError("500"), KeyError("bug")])
def test_growth_that_fails_half_way_ends_what_it_made_and_keeps_what_ran(
    error: Exception, engine: Engine, cloud: Cloud
) -> None:
    engine.up()
    before = ids(cloud)

    def fails(order: object) -> None:
        if getattr(order, "name", "") == "node-4":
            raise error

    cloud.before_launch = fails
    with pytest.raises(type(error)):
        engine.up(nodes=5)
    assert ids(cloud) == before
    cloud.before_launch = lambda _: None
    assert not engine.diff().changes
    engine.up(nodes=5)
    assert len(cloud.billing) == 5
    assert before <= ids(cloud)


def test_a_machine_that_an_up_made_and_could_not_note_down_is_ended_by_the_next(engine: Engine, cloud: Cloud) -> None:
    engine.up(nodes=3)
    assert engine.state is not None
    engine.state["machines"].pop()  # as if the engine had been killed before it wrote its state
    engine.state["nodes"] = 2
    assert engine.diff(nodes=2).changes
    engine.up(nodes=2)
    assert len(cloud.billing) == 2
    assert not engine.diff(nodes=2).changes


def test_a_call_without_an_answer_beside_a_refusal_is_waited_for(engine: Engine, cloud: Cloud) -> None:
    cloud.unseen = 4  # looks
    cloud.before_launch = refusing_each({"node-1": QuotaError("no more")})

    def times_out(order: object) -> None:
        if getattr(order, "name", "") == "node-2":
            raise ProviderError("no answer")

    cloud.after_launch = times_out
    with pytest.raises(QuotaError):
        engine.up(nodes=3)
    for _ in range(10):
        cloud.find()
    assert cloud.billing == []


def test_those_that_live_keep_their_host_key_though_its_file_was_lost(
    engine: Engine, cloud: Cloud, checkout: Deployment
) -> None:
    before = {each["id"]: each["host_key"] for each in engine.up()["machines"]}
    shutil.rmtree(checkout.gang_folder)
    after = {each["id"]: each["host_key"] for each in engine.up(nodes=3)["machines"]}
    assert {id_: after[id_] for id_ in before} == before
    assert len(cloud.billing) == 3


def test_mending_that_fails_leaves_those_that_live(engine: Engine, cloud: Cloud) -> None:
    engine.up(nodes=3)
    cloud.end_by_hand("node-1")
    left = ids(cloud)
    cloud.before_launch = refusing(CapacityError("full"))
    with pytest.raises(CapacityError):
        engine.up(nodes=3)
    assert ids(cloud) == left
