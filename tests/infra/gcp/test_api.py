"""The client: what it repeats, what it refuses, and what it makes of answers that say nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import requests

from infra import gang_record
from infra.errors import AccessError, ProviderError
from infra.gang_record import Record
from infra.providers.gcp import api, faults
from infra.providers.gcp.api import Client
from tests.infra.gcp.asking import deployment
from tests.infra.ordering import NOW


class Answer:
    def __init__(self, status_code: int, content: object) -> None:
        self.status_code, self._content = status_code, content

    @property
    def text(self) -> str:
        return str(self._content)

    def json(self) -> Any:
        if isinstance(self._content, str):
            raise ValueError("no JSON")
        return self._content


class Line:
    """Answers in the order given; time passes only by sleeping."""

    def __init__(self, *answers: Answer | Exception) -> None:
        self.answers, self.asked, self.now = list(answers), list[dict[str, Any]](), 0.0

    def request(self, method: str, url: str, **how: Any) -> Answer:
        self.asked.append({"method": method, "url": url, **how})
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(self) -> Client:
        return Client("p", self, sleep=self._sleep, clock=lambda: self.now)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds


def refusal(status: int, reason: str) -> Answer:
    return Answer(status, {"error": {"code": status, "message": "no", "errors": [{"reason": reason}]}})


GOOD = Answer(200, {"kind": "compute#instance"})


@pytest.mark.parametrize(
    "trouble",
    [
        refusal(429, "rateLimitExceeded"),
        refusal(403, "rateLimitExceeded"),
        refusal(500, "backendError"),
        Answer(502, "<html>"),
        requests.ConnectionError("reset"),
    ],
)
def test_trouble_that_passes_is_waited_out(trouble: Answer | Exception) -> None:
    line = Line(trouble, trouble, GOOD)
    assert line.client().get("x", doing="looking") == {"kind": "compute#instance"}
    assert len(line.asked) == 3
    assert line.now > 0


def test_an_insert_is_repeated_with_the_same_request_id() -> None:
    line = Line(requests.Timeout("no answer"), GOOD)
    line.client().insert("x", {"a": 1}, doing="starting", request_id="id-1")
    assert [each["params"] for each in line.asked] == [{"requestId": "id-1"}] * 2


def test_trouble_that_stays_ends_within_its_bound() -> None:
    line = Line(refusal(503, "backendError"))
    with pytest.raises(ProviderError, match="looking: no usable answer from Google within 180 s"):
        line.client().get("x", doing="looking")
    assert line.now <= api.PATIENCE_S


def test_a_quota_isnt_repeated() -> None:
    line = Line(refusal(403, "quotaExceeded"))
    with pytest.raises(ProviderError, match="quota"):
        line.client().get("x", doing="looking")
    assert len(line.asked) == 1


def test_an_expired_token_is_an_access_error() -> None:
    from google.auth.exceptions import RefreshError

    for answer in (RefreshError("gone"), refusal(401, "authError")):
        with pytest.raises(AccessError, match="gcloud auth application-default login"):
            Line(answer).client().get("x", doing="looking")


@pytest.mark.parametrize("content", [{}, {"items": {}}, {"kind": "compute#x", "items": "no"}, [], "text", ""])
def test_a_list_that_says_nothing_isnt_an_empty_one(content: object) -> None:
    with pytest.raises(ProviderError, match="can't be used"):
        list(Line(Answer(200, content)).client().aggregated("instances", doing="listing"))


def test_a_zone_that_google_cant_reach_isnt_an_empty_one() -> None:
    scopes = {
        "zones/a": {"warning": {"code": "NO_RESULTS_ON_PAGE"}},
        "zones/b": {"warning": {"code": "UNREACHABLE"}},
    }
    line = Line(Answer(200, {"kind": "compute#instanceAggregatedList", "items": scopes}))
    with pytest.raises(ProviderError, match="zones/b"):
        list(line.client().aggregated("instances", doing="listing"))


def test_pages_are_followed() -> None:
    pages = [
        Answer(200, {"kind": "compute#networkList", "items": [{"name": "a"}], "nextPageToken": "2"}),
        Answer(200, {"kind": "compute#networkList", "items": [{"name": "b"}]}),
    ]
    line = Line(*pages)
    assert [each["name"] for each in line.client().pages("x", "items", doing="listing")] == ["a", "b"]
    assert line.asked[1]["params"] == {"pageToken": "2"}


def operation(status: str, **more: object) -> dict[str, object]:
    link = "https://www.googleapis.com/compute/v1/projects/p/zones/z/operations/o"
    return {"kind": "compute#operation", "name": "o", "selfLink": link, "status": status, **more}


def test_an_operation_is_waited_for_and_its_error_raised() -> None:
    failed = operation("DONE", error={"errors": [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "none"}]})
    line = Line(Answer(200, operation("RUNNING")), Answer(200, failed))
    with pytest.raises(ProviderError, match="none of these machines"):
        line.client().wait(operation("PENDING"), doing="starting")
    assert line.asked[0]["url"].endswith("/projects/p/zones/z/operations/o")


def test_an_operation_that_never_ends_is_given_up() -> None:
    line = Line(Answer(200, operation("RUNNING")))
    with pytest.raises(ProviderError, match="within 900 s"):
        line.client().wait(operation("PENDING"), doing="starting")


def test_not_an_operation() -> None:
    with pytest.raises(ProviderError, match="can't be used"):
        Line(GOOD).client().wait({"kind": "compute#instance"}, doing="starting")


def test_endpoints_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_COMPUTE_CUSTOM_ENDPOINT", "http://127.0.0.1:1/compute/v1")
    line = Line(GOOD)
    line.client().get("projects/p", doing="looking")
    assert line.asked[0]["url"] == "http://127.0.0.1:1/compute/v1/projects/p"


def test_the_project_of_the_stack_file_wins(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = deployment(root)
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "of-the-environment")
    assert api.project_of(mine) == "of-the-environment"
    mine.stack_file.parent.mkdir()
    mine.stack_file.write_text("config:\n  gcp:project: of-the-file\n")
    assert api.project_of(mine) == "of-the-file"


def test_another_project_than_the_machines_are_in_is_refused_until_they_are_gone(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = deployment(root)
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "old")
    record = Record(mine.gang_folder, provider="gcp", now=NOW)
    record.restart(NOW, request={"wish": {"project": "old"}}, pinned={})
    assert api.project_of(mine) == "old"
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "new")
    with pytest.raises(ProviderError, match=r"in Google Cloud project old, and new is named now: .*make destroy"):
        api.project_of(mine)
    gang_record.remove(mine.gang_folder)
    assert api.project_of(mine) == "new"


def test_no_project_is_said(root: Path) -> None:
    with pytest.raises(AccessError, match="gcp:project"):
        api.project_of(deployment(root))


def test_not_found_is_a_kind_of_its_own() -> None:
    with pytest.raises(faults.NotFound):
        Line(refusal(404, "notFound")).client().get("x", doing="looking")
