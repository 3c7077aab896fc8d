"""Machines are ended together, and their end is seen."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from infra.ending import end_each
from infra.errors import AccessError, ProviderError


class Cloud:
    """Machines that end some looks after they were told to; `deaf` ones never do, `refused` ones can't be told."""

    def __init__(self, *, deaf: Sequence[str] = (), refused: Sequence[str] = (), looks: int = 2) -> None:
        self.told: list[str] = []
        self._deaf, self._refused, self._looks = deaf, refused, looks
        self._time = 0.0

    def end(self, *ids: str) -> None:
        end_each(
            ids,
            tell=self._tell,
            living=self._living,
            deadline_s=300,
            cloud="The cloud",
            console="its console",
            sleep=self._sleep,
            clock=lambda: self._time,
        )

    def _sleep(self, _: float) -> None:
        self._time += 30.0

    def _tell(self, id_: str) -> None:
        if id_ in self._refused:
            raise AccessError(f"{id_}: not allowed")
        self.told.append(id_)

    def _living(self, ids: Sequence[str]) -> dict[str, str]:
        assert ids, "all would be meant"
        self._looks -= 1
        return {id_: f"{id_} is ending" for id_ in ids if id_ in self._deaf or self._looks > 0}


def test_it_returns_when_all_have_ended(capsys: pytest.CaptureFixture[str]) -> None:
    cloud = Cloud(looks=4)
    cloud.end("a", "b")
    assert cloud.told == ["a", "b"]
    assert capsys.readouterr().err.splitlines() == ["waiting for The cloud, 60 s so far: a is ending, b is ending"]


def test_nothing_to_end_asks_nothing() -> None:
    Cloud().end()


def test_one_that_refuses_keeps_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    cloud = Cloud(refused=["b"])
    with pytest.raises(AccessError, match=r"^b: not allowed$"):
        cloud.end("a", "b", "c")
    assert cloud.told == ["a", "c"]
    assert capsys.readouterr().err == ""


def test_what_stays_is_named_with_what_refused() -> None:
    with pytest.raises(
        ProviderError,
        match=r"^b: not allowed; c is ending 300 s after The cloud was told to end it: look at it at its console, "
        r"then run `fab leftovers`$",
    ):
        Cloud(refused=["b"], deaf=["c"]).end("a", "b", "c")
