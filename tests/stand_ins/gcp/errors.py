"""Refusals in Google's error JSON, by the HTTP status and the `reason` that Google's clients look at."""

from __future__ import annotations

from typing import Any

_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    412: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


class GcpError(Exception):
    """An answer as Google gives it when it refuses a request at once (what fails later is in an operation)."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        domain: str = "global",
        details: list[dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message
        self.domain = domain
        self.details = details or []

    def to_json(self) -> dict[str, Any]:
        error: dict[str, Any] = {
            "code": self.code,
            "message": self.message,
            "errors": [{"message": self.message, "domain": self.domain, "reason": self.reason}],
            "status": _STATUS.get(self.code, "UNKNOWN"),
        }
        if self.details:
            error["details"] = self.details
        return {"error": error}


def invalid(field: str, value: object, why: str) -> GcpError:
    """Compute's sentence about a field with a value it doesn't take."""
    return GcpError(400, "invalid", f"Invalid value for field '{field}': '{_short(value)}'. {why}")


def required(field: str) -> GcpError:
    return GcpError(400, "required", f"Invalid value for field '{field}': ''. Required field '{field}' not specified")


def not_found(path: str) -> GcpError:
    return GcpError(404, "notFound", f"The resource '{path}' was not found")


def already_exists(path: str) -> GcpError:
    return GcpError(409, "alreadyExists", f"The resource '{path}' already exists")


def in_use(kind: str, path: str, user: str) -> GcpError:
    return GcpError(
        400,
        "resourceInUseByAnotherResource",
        f"The {kind} resource '{path}' is already being used by '{user}'",
    )


def not_ready(path: str) -> GcpError:
    return GcpError(400, "resourceNotReady", f"The resource '{path}' is not ready")


def not_in_the_stand_in(what: str) -> GcpError:
    """Ours, not Google's: a request that is right but that this double doesn't play. 400: clients retry 5xx."""
    return GcpError(400, "notImplementedByStandIn", f"The stand-in for GCP doesn't do {what}")


def api_off(api: str, project: str) -> GcpError:
    service = f"{api}.googleapis.com"
    return GcpError(
        403,
        "accessNotConfigured",
        f"{service} has not been used in project {project} before or it is disabled. Enable it by visiting "
        f"https://console.developers.google.com/apis/api/{service}/overview?project={project} then retry.",
        domain="usageLimits",
        details=[
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "SERVICE_DISABLED",
                "domain": "googleapis.com",
                "metadata": {"service": service, "consumer": f"projects/{project}"},
            }
        ],
    )


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 200 else text[:200] + "..."
