"""`make destroy`: machines first, then the engine, then the proof; whoever fails on the way."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.destroy import destroy
from infra.errors import EngineError, LeftoversError, ProviderError, SpecError
from infra.providers.base import IncompleteError, Leftover
from infra.pulumi_engine.layout import bin_folder, write_shell_variables
from tests.infra.in_memory_cloud import FakeProvider, cluster_of_one, instance, thing
from tests.infra.left_things import provider, record

__all__ = ["provider"]


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


def test_what_another_checkout_made_is_left_alone_and_no_success(
    root: Path, provider: FakeProvider, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.knows_no_stack()
    provider.things = [instance("i-1", is_ours=False)]
    with pytest.raises(LeftoversError, match=r"1 thing\(s\) of a stack s are another checkout's .*left alone"):
        destroy(root, "s")
    assert provider.removed == []
    assert "nothing was charged" not in capsys.readouterr().out


def test_a_provider_that_can_not_tell_everything_still_has_its_machines_ended(
    root: Path, provider: FakeProvider, engine: FakeEngine
) -> None:
    provider.refuses = IncompleteError([ProviderError("buckets: 500")], [instance("i-1")])
    provider.things = [instance("i-1")]
    with pytest.raises(ProviderError, match="buckets: 500"):
        destroy(root, "s")
    assert provider.removed[0] == "i-1"
    assert "destroy" in engine.asked


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells whose processes they are")
def test_a_plug_in_of_a_killed_engine_is_waited_for(
    root: Path, provider: FakeProvider, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = root / "infra" / "pulumi_engine" / "dynamic_provider.py"
    command = [sys.executable, "-c", "import time; time.sleep(600)", str(program)]
    plug_in = subprocess.Popen(command)
    monkeypatch.setattr("infra.destroy._ENDING_S", 0.1)
    try:
        with pytest.raises(EngineError, match=rf"process {plug_in.pid} of a killed `pulumi` is still at work"):
            destroy(root, "s")
        assert (provider.removed, engine.asked) == ([], ["stack"])
    finally:
        plug_in.kill()
        plug_in.wait()
    destroy(root, "s")
