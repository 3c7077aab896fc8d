"""One call of a gang's life breaks, each in turn, in each way: there is one machine or none, and none after the end."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from infra import quote
from infra.errors import ProviderError
from infra.providers.base import Deployment
from infra.providers.vast import plan
from infra.providers.vast.api import Vast
from infra.providers.vast.machines import VastMachines
from tests.infra.vast.asking import SHOWN_USD, wish
from tests.infra.vast.test_machines import gang
from tests.stand_ins.vast.server import StandIn

WAYS: dict[str, dict[str, Any]] = {
    "closed before": {"status": 0},
    "closed after": {"status": 0, "executes": True},
    "500": {"status": 500},
    "500 after": {"status": 500, "executes": True},
    "empty": {"status": 200, "body": b""},
    "empty after": {"status": 200, "body": b"", "executes": True},
    "busy": {"status": 429, "body": b"API requests too frequent"},
    "no JSON": {"status": 502, "body": b"<html>"},
    "for ever": {"status": 503, "times": 6},
}
_MOST_CALLS = 40


class BreaksAt(StandIn):
    """The call number `at` (from 0) is answered as `way` says."""

    at, way = -1, WAYS["500"]

    def answer(self, method: str, target: str, headers: Any, body: bytes) -> tuple[int, bytes]:
        if len(self.calls) == self.at:
            self.fail(method, ".*", **self.way)
        return super().answer(method, target, headers, body)


def life(cloud: StandIn, mine: Deployment, *, market: str) -> bool:
    """Whether the gang came up. Whatever happened, nothing bills at the end."""
    quote.note(mine, SHOWN_USD)
    ticks = iter(range(0, 10**9, 60))
    client = Vast(cloud.url, cloud.key, sleep=lambda _: None)
    ours = VastMachines(mine, client, wish=wish(market=market), sleep=lambda _: None, clock=lambda: next(ticks))
    made = gang(ours, mine)
    came = False
    with contextlib.suppress(ProviderError):
        (machine,) = made.raise_in_one_of([plan.ANYWHERE])
        came = True
        assert cloud.billing() == [machine.id]
    if not came:
        assert cloud.billing() == []
        return False
    for _ in range(2):  # the second `make destroy` of a user whose first one failed
        with contextlib.suppress(ProviderError):
            made.end_all()
    assert cloud.billing() == []
    return True


@pytest.mark.parametrize("market", ["on-demand", pytest.param("spot", marks=pytest.mark.sweep)])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.usefixtures("cloud")  # for the calls that wait for nothing
def test_nothing_is_left_whichever_call_breaks(way: dict[str, Any], market: str, root: Any) -> None:
    for at in range(_MOST_CALLS):
        with BreaksAt() as cloud:
            cloud.at, cloud.way = at, way
            cloud.unseen = at % 2
            for _ in range(3):
                cloud.offer()
            mine = Deployment(root=root, stack=f"s{at}")
            life(cloud, mine, market=market)
            if len(cloud.calls) <= at:
                assert at > 8
                return
    raise AssertionError(f"a life has more than {_MOST_CALLS} calls")
