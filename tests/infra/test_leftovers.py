"""What is left of a stack, and its removal: by the provider's word, whoever fails on the way."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from infra import leftovers
from infra.errors import AccessError, LeftoversError, ProviderError
from infra.providers.base import IncompleteError, Leftover
from tests.infra.in_memory_cloud import FakeProvider, instance, register, thing
from tests.infra.left_things import provider, record, stack_file

__all__ = ["provider"]


# Removing


def test_nothing_left_is_success_however_often(root: Path, provider: FakeProvider) -> None:
    leftovers.check(root, "s")
    leftovers.sweep(root, "s")
    leftovers.sweep_all(root, "s")
    assert provider.removed == []


def test_what_is_there_is_listed_with_its_price_and_the_command_that_removes_it(
    root: Path, provider: FakeProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    provider.things = [instance("i-1"), thing("volume", "vol-1")]
    with pytest.raises(LeftoversError, match=r"2 thing.* fab leftovers --stack s --remove"):
        leftovers.check(root, "s")
    _, machine, volume = capsys.readouterr().out.splitlines()
    assert machine.split() == ["instance", "i-1", "2.50", "node-0"]
    assert volume.split() == ["volume", "vol-1", "unknown"]
    assert provider.removed == []


def test_kinds_go_in_the_order_that_the_provider_tells(root: Path, provider: FakeProvider) -> None:
    provider.things = [instance("i-1"), instance("i-2"), thing("volume", "vol-1"), thing("network", "net-1")]
    leftovers.sweep(root, "s")
    assert set(provider.removed[:2]) == {"i-1", "i-2"}
    assert provider.removed[2:] == ["vol-1", "net-1"]


def test_things_of_one_kind_go_side_by_side(root: Path, provider: FakeProvider) -> None:
    provider.things = [instance(f"i-{number}") for number in range(8)]
    all_there = threading.Barrier(8)
    provider.before_remove = lambda _leftover: _wait(all_there)
    leftovers.sweep(root, "s")
    assert len(provider.removed) == 8


def _wait(barrier: threading.Barrier) -> None:
    barrier.wait(timeout=60)  # broken, and so an error, if they come one after the other


def test_one_that_can_not_be_removed_does_not_keep_the_others(
    root: Path, provider: FakeProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    provider.things = [instance("i-1"), instance("i-2"), thing("group", "sg-1"), thing("network", "net-1")]
    provider.stubborn = {"i-1", "sg-1"}
    with pytest.raises(LeftoversError) as error:
        leftovers.sweep(root, "s")
    assert sorted(provider.removed) == ["i-2", "net-1"]
    for part in ("2 thing(s) could not be removed", "instance i-1 is in use", "group sg-1 is in use", "by hand"):
        assert part in str(error.value)
    told = capsys.readouterr().out
    assert "i-1" in told
    assert "sg-1" in told
    assert "i-2" not in told


def test_what_another_one_was_in_the_way_of_goes_in_the_next_round(root: Path, provider: FakeProvider) -> None:
    provider.things = [thing("group", "sg-1"), instance("i-1")]
    provider.stubborn = {"sg-1"}

    def free(leftover: Leftover) -> None:
        if leftover.id == "i-1":
            provider.stubborn = set()

    provider.before_remove = free
    leftovers.sweep(root, "s")
    assert provider.things == []


def test_what_a_removal_uncovers_is_removed_too(root: Path, provider: FakeProvider) -> None:
    provider.things = [instance("i-1")]
    provider.uncovers = {"i-1": thing("volume", "vol-1")}
    leftovers.sweep(root, "s")
    assert provider.removed == ["i-1", "vol-1"]


def test_what_comes_back_for_ever_is_told_as_such(root: Path, provider: FakeProvider) -> None:
    provider.things = [instance("i-0")]

    def again(leftover: Leftover) -> None:
        provider.uncovers[leftover.id] = replace(leftover, id=leftover.id + "0")

    provider.before_remove = again
    with pytest.raises(LeftoversError, match="they came back"):
        leftovers.sweep(root, "s")


def test_another_checkouts_things_are_told_and_left_alone(
    root: Path, provider: FakeProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    provider.things = [instance("i-1"), instance("i-2", is_ours=False)]
    error = leftovers.sweep(root, "s")
    assert provider.removed == ["i-1"]
    said = capsys.readouterr().out
    assert "nothing of this checkout's is left" in said
    assert "i-2" in said
    assert "another checkout's" in str(error)
    assert "fab leftovers --stack s --remove" in str(error)


def test_asked_for_all_another_checkouts_things_go_too(root: Path, provider: FakeProvider) -> None:
    provider.things = [instance("i-1"), instance("i-2", is_ours=False)]
    leftovers.sweep_all(root, "s")
    assert sorted(provider.removed) == ["i-1", "i-2"]


def test_ending_machines_takes_ours_and_only_machines_and_tells_each_failure(
    root: Path, provider: FakeProvider
) -> None:
    provider.things = [
        instance("i-1"),
        instance("i-2"),
        instance("i-3"),
        instance("i-4", is_ours=False),
        thing("volume", "v"),
    ]
    provider.stubborn = {"i-1", "i-3"}
    assert leftovers.end_machines(root, "s") == ["instance i-1 is in use", "instance i-3 is in use"]
    assert provider.removed == ["i-2"]


def test_an_answer_that_is_none_is_not_nothing(root: Path, provider: FakeProvider) -> None:
    provider.refuses = ProviderError("500")
    for verb in (leftovers.check, leftovers.sweep, leftovers.sweep_all, leftovers.end_machines):
        with pytest.raises(ProviderError, match="500"):
            verb(root, "s")


def test_machines_are_ended_though_not_everything_could_be_asked(root: Path, provider: FakeProvider) -> None:
    provider.refuses = IncompleteError([AccessError("buckets: no rights")], [instance("i-1")])
    provider.things = [instance("i-1")]
    assert leftovers.end_machines(root, "s") == ["buckets: no rights"]
    assert provider.removed == ["i-1"]
    with pytest.raises(ProviderError, match="no rights") as error:
        leftovers.sweep(root, "s")
    assert error.value.exit_code == AccessError.exit_code


# Who is asked


@pytest.fixture
def two(root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[FakeProvider, FakeProvider]:
    """Two providers, one and other, and no stack file."""
    one, other = FakeProvider(things=[instance("i-one")]), FakeProvider(things=[instance("i-other")])
    register(monkeypatch, one=one, other=other)
    root.joinpath("stacks").mkdir()
    return one, other


def ids(root: Path) -> list[str]:
    return [each.id for each in leftovers.find(root, "s")]


@pytest.mark.parametrize("cluster", [None, {"nodes": 2}, "one", {"provider": "oen"}, {"provider": ["one"]}])
def test_without_a_stack_file_that_says_it_all_are_asked(cluster: object, root: Path, two: object) -> None:
    assert two
    if cluster is not None:
        stack_file(root, cluster)
    assert ids(root) == ["i-one", "i-other"]


def test_the_one_that_the_stack_file_names_is_asked_alone(root: Path, two: object) -> None:
    assert two
    stack_file(root, {"provider": "other"})
    assert ids(root) == ["i-other"]


def test_the_one_of_the_record_is_asked_too(root: Path, two: object) -> None:
    assert two
    stack_file(root, {"provider": "other"})
    record(root, provider="one")
    assert ids(root) == ["i-other", "i-one"]


def test_without_credentials_an_unnamed_provider_is_a_note(
    root: Path, two: tuple[FakeProvider, FakeProvider], capsys: pytest.CaptureFixture[str]
) -> None:
    two[1].refuses = AccessError("no credentials")
    assert ids(root) == ["i-one"]
    assert "note: other could not be asked: no credentials" in capsys.readouterr().err


@pytest.mark.parametrize("named_by", ["stack file", "record", "record beside a stack file"])
def test_without_credentials_a_named_provider_is_an_error(
    named_by: str, root: Path, two: tuple[FakeProvider, FakeProvider]
) -> None:
    two[1].refuses = AccessError("no credentials")
    if named_by != "record":
        stack_file(root, {"provider": "other" if named_by == "stack file" else "one"})
    if named_by != "stack file":
        record(root, provider="other")
    with pytest.raises(AccessError, match="no credentials"):
        leftovers.check(root, "s")


def test_a_provider_that_can_not_tell_does_not_keep_anothers_machines(
    root: Path, two: tuple[FakeProvider, FakeProvider]
) -> None:
    two[0].refuses = AccessError("no credentials")
    stack_file(root, {"provider": "other"})
    record(root, provider="one")
    two[1].things.append(instance("i-late"))
    assert leftovers.end_machines(root, "s") == ["no credentials"]
    assert sorted(two[1].removed) == ["i-late", "i-other"]
    with pytest.raises(AccessError, match="no credentials"):
        leftovers.sweep(root, "s")
