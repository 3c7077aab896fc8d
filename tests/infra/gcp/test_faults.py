"""Google's error codes: each to the kind of refusal that says what to do."""

from __future__ import annotations

import pytest

from infra.errors import AccessError, CapacityError, ProviderError, QuotaError, UnsupportedError
from infra.providers.gcp import faults

DOING = "starting node-1 in us-central1-a"


def of_operation(code: str, message: str = "said so", **details: object) -> ProviderError:
    error = {"code": code, "message": message, **({"errorDetails": [details]} if details else {})}
    return faults.fault(faults.read_operation([error]), status=0, doing=DOING)


def of_answer(status: int, code: str, message: str = "said so", **details: object) -> ProviderError:
    body = {"error": {"code": status, "message": message, "errors": [{"reason": code}], "details": [details]}}
    return faults.fault(faults.read(body), status=status, doing=DOING)


@pytest.mark.parametrize("code", sorted(faults.CAPACITY))
def test_no_capacity_in_an_operation(code: str) -> None:
    error = of_operation(code)
    assert type(error) is CapacityError
    assert str(error).startswith(DOING)


def test_no_capacity_at_once() -> None:
    assert type(of_answer(503, "insufficientCapacity")) is CapacityError


def test_quota_zero_names_metric_limit_region_and_pool() -> None:
    error = of_operation("QUOTA_EXCEEDED", "Quota 'NVIDIA_L4_GPUS' exceeded.  Limit: 0.0 in region us-central1.")
    assert type(error) is QuotaError
    assert "NVIDIA_L4_GPUS (on-demand pool) is 0 in region us-central1" in str(error)


def test_quota_of_spot_is_the_other_pool() -> None:
    message = "Quota 'PREEMPTIBLE_NVIDIA_L4_GPUS' exceeded. Limit: 1.0 in region europe-west4."
    assert "PREEMPTIBLE_NVIDIA_L4_GPUS (spot and flex-start pool) is 1 in region europe-west4" in str(
        of_answer(403, "quotaExceeded", message)
    )


def test_quota_told_in_details_wins_over_the_text() -> None:
    info = {"metricName": "compute.googleapis.com/gpus", "limitName": "GPUS-PER-GPU-FAMILY-per-project-region"}
    error = of_operation(
        "QUOTA_EXCEEDED", "exceeded", quotaInfo={**info, "limit": 8.0, "dimensions": {"region": "us-east4"}}
    )
    assert "GPUS-PER-GPU-FAMILY-per-project-region (on-demand pool) is 8 in us-east4" in str(error)


@pytest.mark.parametrize(
    "message",
    [
        "Invalid value for field 'resource.machineType': 'zones/us-central1-b/machineTypes/a4-highgpu-8g'. "
        "Machine type with name 'a4-highgpu-8g' does not exist in zone 'us-central1-b'.",
        "Network profile only allows resource creation in location us-central1-b.",
    ],
)
def test_what_a_zone_never_has(message: str) -> None:
    assert type(of_answer(400, "invalid", message)) is UnsupportedError


def test_a_machine_type_that_isnt_found_is_unsupported_and_a_disk_isnt() -> None:
    there = "The resource 'projects/p/zones/us-central1-b/{}' was not found"
    assert type(of_answer(404, "notFound", there.format("machineTypes/a4-highgpu-8g"))) is UnsupportedError
    assert type(of_answer(404, "notFound", there.format("disks/d"))) is faults.NotFound


@pytest.mark.parametrize(
    ("status", "reason", "said"),
    [
        (401, "authError", "gcloud auth application-default login"),
        (403, "forbidden", "grant them the role"),
        (403, "accessNotConfigured", "gcloud services enable"),
        (403, "billingNotEnabled", "billing account"),
    ],
)
def test_access(status: int, reason: str, said: str) -> None:
    error = of_answer(status, reason)
    assert isinstance(error, AccessError)
    assert said in str(error)


def test_an_api_that_is_off_is_named() -> None:
    error = of_answer(403, "forbidden", reason="SERVICE_DISABLED", metadata={"service": "file.googleapis.com"})
    assert type(error) is faults.ApiOff
    assert "gcloud services enable file.googleapis.com" in str(error)


def test_throttling_is_told_from_a_quota() -> None:
    for status, reason in ((429, "rateLimitExceeded"), (403, "userRateLimitExceeded"), (403, "rateLimitExceeded")):
        body = {"error": {"code": status, "message": "", "errors": [{"reason": reason}]}}
        assert faults.is_throttling(status, faults.read(body))
    quota = faults.read({"error": {"code": 403, "message": "", "errors": [{"reason": "quotaExceeded"}]}})
    assert not faults.is_throttling(403, quota)


def test_in_use_exists_and_unknown() -> None:
    assert type(of_operation("RESOURCE_IN_USE_BY_ANOTHER_RESOURCE")) is faults.InUse
    assert type(of_answer(400, "resourceInUseByAnotherResource")) is faults.InUse
    assert type(of_answer(409, "alreadyExists")) is faults.AlreadyExists
    unknown = of_operation("SOMETHING_NEW", "a new word")
    assert type(unknown) is ProviderError
    assert "SOMETHING_NEW (a new word)" in str(unknown)


@pytest.mark.parametrize("body", [None, "", "<html>oops</html>", [], {}, {"error": "text"}, {"error": {}}])
def test_a_body_that_is_none_is_still_one_sentence(body: object) -> None:
    error = faults.fault(faults.read(body), status=400, doing=DOING)
    assert type(error) is ProviderError
    assert "\n" not in str(error)
