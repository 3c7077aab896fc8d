"""What Google's errors mean: its codes to our kinds of refusal, each a sentence with what to do. Pure.

An error arrives in one of two ways: as the answer to a call (HTTP status, `error.errors[].reason` or, from the newer
APIs, `error.details[].reason`), or in an operation that was accepted and failed later (`error.errors[].code`). That
there is no capacity, or no quota, usually comes in the second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from infra.errors import AccessError, CapacityError, ProviderError, QuotaError, UnsupportedError


class NotFound(ProviderError):
    """It isn't there."""


class AlreadyExists(ProviderError):
    """Something of that name is there."""


class InUse(ProviderError):
    """Something else still needs it, or it is changing this moment."""


class ApiOff(AccessError):
    """The project doesn't use this API: nothing can have been made through it."""


class Denied(AccessError):
    """Who we are is known, and may not do this."""


CAPACITY = frozenset(
    {
        "ZONE_RESOURCE_POOL_EXHAUSTED",
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        "REGION_RESOURCE_POOL_EXHAUSTED",
        "RESOURCE_POOL_EXHAUSTED",
        "GPU_STOCKOUT",
        "STOCKOUT",
        "INSUFFICIENTCAPACITY",
        "INSUFFICIENT_CAPACITY",
        "RESERVATION_CAPACITY_EXCEEDED",
    }
)
QUOTA = frozenset({"QUOTA_EXCEEDED", "QUOTAEXCEEDED"})
THROTTLED = frozenset({"RATELIMITEXCEEDED", "USERRATELIMITEXCEEDED", "RATE_LIMIT_EXCEEDED"})
_UNSUPPORTED = frozenset({"UNSUPPORTED_OPERATION", "UNSUPPORTEDOPERATION", "LOCATION_POLICY_VIOLATED"})
_IN_USE = frozenset(
    {"RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", "RESOURCEINUSEBYANOTHERRESOURCE", "RESOURCE_NOT_READY", "RESOURCENOTREADY"}
)
_API_OFF = frozenset({"ACCESSNOTCONFIGURED", "SERVICE_DISABLED"})
_BILLING = frozenset({"BILLING_DISABLED", "BILLINGDISABLED", "BILLINGNOTENABLED", "UREQ_PROJECT_BILLING_NOT_FOUND"})
# "Quota 'NVIDIA_L4_GPUS' exceeded.  Limit: 1.0 in region us-central1."
_QUOTA_TEXT = re.compile(r"Quota '(?P<metric>[^']+)' exceeded.*?Limit: (?P<limit>[\d.]+)(?P<where>[^.]*)", re.DOTALL)
# 400 of an insert: this machine type, disk or network profile is nothing that the zone has.
_NOT_HERE = re.compile(
    r"machine ?type.*(does not exist|not (found|supported|available))|network profile only allows resource creation in|"
    r"not available in zone|not supported in (this )?zone",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, kw_only=True)
class Said:
    """One error as Google put it."""

    codes: frozenset[str]
    """Upper case: reasons, codes and statuses, of all that were given."""
    message: str
    quota: Mapping[str, Any] | None = None
    """errorDetails[].quotaInfo: metricName, limitName, dimensions, limit."""
    api: str = ""
    """Which API is off."""


def read(body: object) -> Said:
    """The error in an HTTP answer's body."""
    error = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping):
        return Said(codes=frozenset(), message=str(body)[:300] if body else "no reason given")
    errors = [each for each in error.get("errors", []) if isinstance(each, Mapping)]
    details = [each for each in error.get("details", []) if isinstance(each, Mapping)]
    codes = {str(error.get("status", "")), *(str(each.get("reason", "")) for each in [*errors, *details])}
    api = next((str(each["metadata"]["service"]) for each in details if "service" in each.get("metadata", {})), "")
    return Said(codes=frozenset(code.upper() for code in codes if code), message=str(error.get("message", "")), api=api)


def read_operation(errors: Iterable[object]) -> Said:
    """The error in a failed operation."""
    known = [each for each in errors if isinstance(each, Mapping)]
    details = [one for each in known for one in each.get("errorDetails", []) if isinstance(one, Mapping)]
    return Said(
        codes=frozenset(str(each.get("code", "")).upper() for each in known),
        message="; ".join(str(each.get("message", "")) for each in known) or "no reason given",
        quota=next((one["quotaInfo"] for one in details if "quotaInfo" in one), None),
    )


def is_throttling(status: int, said: Said) -> bool:
    return status == 429 or (status == 403 and bool(said.codes & THROTTLED))


def fault(said: Said, *, status: int, doing: str) -> ProviderError:
    """The refusal that `said` is. `status`: of the HTTP answer, 0 of an operation. `doing`: "starting node-1 in …"."""
    why = " ".join(said.message.split())
    codes = said.codes
    if codes & CAPACITY:
        return CapacityError(f"{doing}: Google has none of these machines there now ({_short(why)})")
    if codes & QUOTA:
        return QuotaError(f"{doing}: {_quota(said, why)}")
    if status == 401:
        return AccessError(
            f"{doing}: the credentials are refused or have expired ({_short(why)}): "
            "run `gcloud auth application-default login`, then the same command again"
        )
    if codes & _API_OFF:
        api = said.api or "compute.googleapis.com"
        return ApiOff(f"{doing}: {api} is off in this project: run `gcloud services enable {api}`, then wait a minute")
    if codes & _BILLING or ("billing" in why.lower() and status == 403):
        return Denied(f"{doing}: the project has no working billing account ({_short(why)}): link one in the console")
    if status == 404 or codes & {"RESOURCE_NOT_FOUND", "NOT_FOUND", "NOTFOUND"}:
        if re.search(r"machineTypes/|acceleratorTypes/", why):
            return UnsupportedError(f"{doing}: the zone has no such machine ({_short(why)})")
        return NotFound(f"{doing}: it isn't there ({_short(why)})")
    if codes & {"RESOURCE_ALREADY_EXISTS", "ALREADYEXISTS", "ALREADY_EXISTS"}:
        return AlreadyExists(f"{doing}: something of that name is there ({_short(why)})")
    if codes & _IN_USE:
        return InUse(f"{doing}: something else still needs it ({_short(why)})")
    if codes & _UNSUPPORTED or _NOT_HERE.search(why):
        return UnsupportedError(f"{doing}: the zone doesn't offer this ({_short(why)})")
    if status == 403:
        return Denied(
            f"{doing}: these credentials may not ({_short(why)}): grant them the role that the message names, "
            "or take others"
        )
    kind = f"HTTP {status}" if status else ", ".join(sorted(codes)) or "a failed operation"
    return ProviderError(f"{doing}: Google answers {kind} ({_short(why)}): see the reason, then run it again")


def _quota(said: Said, why: str) -> str:
    info = said.quota or {}
    match = _QUOTA_TEXT.search(why)
    metric = str(info.get("limitName") or info.get("metricName") or (match and match["metric"]) or "of some kind")
    limit = info.get("limit", match and match["limit"])
    dimensions = info.get("dimensions")
    where = " ".join(map(str, dimensions.values())) if isinstance(dimensions, Mapping) else ""
    where = where or (match["where"].removeprefix(" in ").strip() if match else "")
    place = f" in {where}" if where else ""
    allowed = f"{float(limit):g}" if limit is not None else "what it is"
    pool = "spot and flex-start" if "PREEMPTIBLE" in metric.upper() else "on-demand"
    return (
        f"quota {metric} ({pool} pool) is {allowed}{place} and would be passed: ask for more under "
        f"IAM & Admin > Quotas in the console, or take fewer machines, another market or region ({_short(why)})"
    )


def _short(text: str) -> str:
    text = text.rstrip(" .") or "no reason given"
    return text if len(text) <= 300 else text[:297] + "…"
