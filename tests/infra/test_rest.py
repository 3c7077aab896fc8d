"""REST APIs that are slow, busy, broken or changed: what is tried again, what is not, and what is said."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, TypeAdapter

from infra.errors import AccessError, ProviderError
from infra.rest import NoAnswerError, Pace, Rest
from tests.stand_ins.lambda_cloud.server import KEY, StandIn


class Answer(BaseModel):
    model_config = ConfigDict(strict=True)
    data: dict[str, Any]


ANSWER = TypeAdapter(Answer)
PATH = "/api/v1/firewall-rulesets/global"


class Trial:
    def __init__(self, url: str) -> None:
        self.slept: list[float] = []
        pace = Pace(0.0)
        self.rest = Rest(url, KEY, name="Cloud", translate=refused, pace=pace, sleep=self.slept.append)

    def ask(self, *, method: str = "GET", repeatable: bool = True) -> Answer:
        return self.rest.call(method, PATH, ANSWER, doing="asking", repeatable=repeatable)


def refused(status: int, body: Mapping[str, Any], doing: str) -> ProviderError:
    return ProviderError(f"{doing}: {status} {body.get('error', {}).get('code')}")


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn() as made:
        yield made


@pytest.fixture
def trial(server: StandIn) -> Trial:
    return Trial(server.env["LAMBDA_CLOUD_BASE_URL"])


@pytest.mark.parametrize("status", [0, 429, 500, 503])
def test_what_may_be_repeated_is(status: int, server: StandIn, trial: Trial) -> None:
    server.fail("GET", PATH, status=status, times=3)
    assert trial.ask().data["id"] == "global"
    assert len(trial.slept) == 3
    assert trial.slept[0] < trial.slept[2]


@pytest.mark.parametrize(("status", "said"), [(0, "didn't answer"), (500, "asking: 500 global/internal-error")])
def test_but_not_for_ever(status: int, said: str, server: StandIn, trial: Trial) -> None:
    server.fail("GET", PATH, status=status, times=1000)
    with pytest.raises(ProviderError, match=said):
        trial.ask()
    assert len(server.calls) == 6


@pytest.mark.parametrize("status", [0, 500, 200])
def test_what_may_have_been_carried_out_is_not_repeated_and_told_as_such(
    status: int, server: StandIn, trial: Trial
) -> None:
    server.fail("POST", PATH, status=status, body=b"" if status == 200 else None, times=1000)
    with pytest.raises(NoAnswerError):
        trial.ask(method="POST", repeatable=False)
    assert len(server.calls) == 1


def test_what_was_refused_for_its_pace_made_nothing_and_is_repeated(server: StandIn, trial: Trial) -> None:
    server.fail("POST", PATH, status=429, times=2, **{"Retry-After": "7"})
    with pytest.raises(ProviderError, match="404"):  # the third call arrives: there is no such thing to post
        trial.ask(method="POST", repeatable=False)
    assert trial.slept == [7, 7]


@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_refusal_is_not_repeated(status: int, server: StandIn, trial: Trial) -> None:
    server.fail("GET", PATH, status=status, code="no")
    with pytest.raises(ProviderError, match=f"asking: {status} no"):
        trial.ask()
    assert len(server.calls) == 1


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"<html>", b'{"data": []}', b'{"other": {}}', b"\xff"])
def test_an_answer_that_is_none_tells_nothing(body: bytes, server: StandIn, trial: Trial) -> None:
    server.fail("GET", PATH, status=200, body=body)
    with pytest.raises(ProviderError, match=r"asking: Cloud's answer isn't as its API describes it .*tells nothing"):
        trial.ask()


def test_who_can_not_be_reached_is_told(server: StandIn) -> None:
    with StandIn() as gone:
        url = gone.env["LAMBDA_CLOUD_BASE_URL"]
    with pytest.raises(ProviderError, match=r"^asking: Cloud can't be reached \(.*refused\): look at the network$"):
        Trial(url).ask()
    assert server.calls == []


def test_a_redirection_leads_the_key_nowhere(server: StandIn, trial: Trial) -> None:
    with StandIn() as elsewhere:
        there = elsewhere.env["LAMBDA_CLOUD_BASE_URL"] + PATH
        server.fail("GET", PATH, status=302, Location=there)
        with pytest.raises(ProviderError, match="302"):
            trial.ask()
        assert elsewhere.calls == []


def test_a_key_goes_over_https_or_to_this_machine() -> None:
    with pytest.raises(AccessError, match=re.escape("Cloud's address is http://example.com")):
        Trial("http://example.com")


def test_a_pace_is_kept_over_calls() -> None:
    slept: list[float] = []
    pace = Pace(12.0, sleep=slept.append, clock=lambda: 100.0)
    for _ in range(3):
        pace.wait()
    assert slept == [12.0, 24.0]
