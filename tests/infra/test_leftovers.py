"""What is left of a stack, its removal, and `make destroy`: by the provider's word, whoever fails on the way."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra import leftovers
from infra.destroy import destroy
from infra.errors import AccessError, EngineError, LeftoversError, ProviderError, SpecError
from infra.gang_record import Record
from infra.providers.base import Deployment, Leftover
from infra.pulumi_engine.layout import bin_folder, write_shell_variables
from tests.infra.in_memory_cloud import NOW, FakeProvider, cluster_of_one, instance, register, thing

FAKE = {"provider": "fake"}


@pytest.fixture
def provider(root: Path, monkeypatch: pytest.MonkeyPatch) -> FakeProvider:
    """The one that the stack file names; there is no other."""
    fake = FakeProvider()
    register(monkeypatch, fake=fake)
    stack_file(root, FAKE)
    return fake


def stack_file(root: Path, cluster: object) -> None:
    file = Deployment(root=root, stack="s").stack_file
    file.parent.mkdir(exist_ok=True)
    file.write_text(yaml.safe_dump({"config": {"trainstack:cluster": cluster}}))


def record(root: Path, *, provider: str) -> Path:
    folder = Deployment(root=root, stack="s").gang_folder
    Record(folder, provider=provider, now=NOW).begin("a")
    return folder


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
    leftovers.sweep(root, "s")
    assert provider.removed == ["i-1"]
    said = capsys.readouterr()
    assert "i-2" in said.out
    assert "another checkout's" in said.err
    assert "fab leftovers --stack s --remove" in said.err


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


# make destroy


class FakeEngine:
    """A `pulumi` that answers each of its verbs as a test says, and notes what it was asked."""

    def __init__(self, root: Path) -> None:
        self._root = root
        folder = bin_folder(root)
        folder.mkdir(parents=True)
        self._answers = folder.parent / "answers"
        self._answers.mkdir()
        self._log = folder.parent / "asked"
        for name in ("pulumi", "pulumi-language-python"):
            path = folder / name
            path.write_text(
                f'#!/bin/sh\necho "$1" >> "{self._log}"\n'
                f'[ -e "{self._answers}/$1" ] || exit 0\n. "{self._answers}/$1"\n'
            )
            path.chmod(0o755)
        write_shell_variables(root)

    def answers(self, verb: str, line: str) -> None:
        (self._answers / verb).write_text(line + "\n")

    def knows_no_stack(self) -> None:
        for verb in ("stack", "refresh", "destroy", "config"):
            self.answers(verb, "echo \"error: no stack named 's' found\" >&2; exit 255")

    def holds(self, cluster: dict[str, Any]) -> None:
        (self._answers / "cluster.json").write_text(json.dumps(cluster))
        self.answers("stack", f'exec cat "{self._answers}/cluster.json"')

    @property
    def asked(self) -> list[str]:
        return self._log.read_text().split() if self._log.exists() else []


@pytest.fixture
def engine(root: Path) -> FakeEngine:
    made = FakeEngine(root)
    made.answers("stack", "echo 'error: current stack does not have output property' >&2; exit 255")
    return made


def test_destroy_ends_machines_before_the_engine_comes_and_sweeps_after_it(
    root: Path, provider: FakeProvider, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    provider.things = [thing("network", "net-1"), instance("i-1")]
    at: dict[str, list[str]] = {}
    provider.before_remove = lambda leftover: at.update({leftover.id: engine.asked})
    folder = record(root, provider="fake")

    destroy(root, "s")

    assert provider.removed == ["i-1", "net-1"]
    assert "destroy" not in at["i-1"]
    assert at["net-1"][-2:] == ["refresh", "destroy"]
    assert not folder.exists()
    assert capsys.readouterr().out.splitlines()[-1] == "stack s: nothing was up, nothing was charged"


def test_destroy_again_and_of_nothing_is_success(root: Path, provider: FakeProvider, engine: FakeEngine) -> None:
    engine.knows_no_stack()
    destroy(root, "s")
    destroy(root, "s")
    assert provider.removed == []


def test_destroy_of_a_cluster_ends_with_its_receipt(
    root: Path, provider: FakeProvider, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert provider.things == []
    engine.holds(cluster_of_one().to_json())
    destroy(root, "s")
    assert capsys.readouterr().out.splitlines()[-1].startswith("receipt: stack s, 1 node(s) for 3600 s at $5.00")


@pytest.mark.parametrize("verb", ["refresh", "destroy"])
def test_when_the_engine_fails_everything_is_removed_all_the_same_and_its_reason_told(
    verb: str, root: Path, provider: FakeProvider, engine: FakeEngine
) -> None:
    provider.things = [instance("i-1"), thing("network", "net-1")]
    engine.answers(verb, "echo 'error: plugin crashed' >&2; exit 255")
    with pytest.raises(EngineError, match=rf"`pulumi {verb} --stack s` failed .*plugin crashed.*make destroy"):
        destroy(root, "s")
    assert provider.things == []


def test_a_machine_that_first_can_not_be_ended_is_tried_again_by_the_sweep(
    root: Path, provider: FakeProvider, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    provider.things = [instance("i-1")]
    provider.stubborn = {"i-1"}

    def heal(_leftover: Leftover) -> None:
        if "destroy" in engine.asked:
            provider.stubborn = set()

    provider.before_remove = heal
    destroy(root, "s")
    assert provider.things == []
    assert "instance i-1 is in use" in capsys.readouterr().err


def test_what_stays_is_named_and_the_record_kept_for_the_next_try(
    root: Path, provider: FakeProvider, engine: FakeEngine
) -> None:
    provider.things, provider.stubborn = [instance("i-1")], {"i-1"}
    folder = record(root, provider="fake")
    with pytest.raises(LeftoversError, match="instance i-1 is in use"):
        destroy(root, "s")
    assert folder.exists()
    assert engine.asked[-1] == "destroy"
    provider.stubborn = set()
    destroy(root, "s")
    assert provider.things == []


def test_a_name_that_nobody_knows_is_not_a_destroyed_stack(
    root: Path, provider: FakeProvider, engine: FakeEngine
) -> None:
    assert provider.things == []
    engine.knows_no_stack()
    with pytest.raises(SpecError, match="no stack mistyped"):
        destroy(root, "mistyped")


def test_a_lock_of_an_engine_that_is_gone_is_released_and_one_elsewhere_is_not(
    root: Path, provider: FakeProvider, engine: FakeEngine, lock: Callable[..., None]
) -> None:
    lock(hostname=socket.gethostname(), pid=2**22 + 1)
    destroy(root, "s")
    assert "cancel" in engine.asked
    provider.things = [instance("i-1")]
    lock(hostname="another-machine", pid=7)
    with pytest.raises(EngineError, match="process 7 on another-machine"):
        destroy(root, "s")
    assert provider.removed == []


@pytest.fixture
def lock(root: Path) -> Callable[..., None]:
    def make(**content: object) -> None:
        folder = root / ".trainstack" / "pulumi" / ".pulumi" / "locks" / "organization" / "trainstack" / "s"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "one.json").write_text(json.dumps(content))

    return make
