"""The plug-in's HTTP: Google's credentials, the custom endpoints, operations waited for, "in use" tried again."""

from __future__ import annotations

import os
import time
from typing import Any

import google.auth
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
ATTEMPTS, BETWEEN_S, POLLS = 5, 0.1, 200
Values = dict[str, Any]


class Refused(Exception):
    """Google said no: at once, or in an operation."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class NotFound(Refused):
    """It isn't there (any more)."""


class Rest:
    def __init__(self) -> None:
        credentials, _ = google.auth.default(scopes=[SCOPE])
        self._session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]

    def send(self, verb: str, api: str, path: str, body: Values | None) -> Values:
        """One request. Raises Refused or NotFound."""
        base = os.environ[f"GOOGLE_{api.upper()}_CUSTOM_ENDPOINT"]
        try:
            answer = self._session.request(verb, base + path, json=body, timeout=120)
        except GoogleAuthError as error:
            raise Refused(f"{verb} {path}: {error}") from error
        if answer.ok:
            return dict(answer.json()) if answer.content else {}
        try:
            error = answer.json()["error"]
        except (ValueError, KeyError):
            raise Refused(f"googleapi: got HTTP response code {answer.status_code}") from None
        reason = error["errors"][0]["reason"]
        kind = NotFound if answer.status_code == 404 else Refused
        raise kind(f"googleapi: Error {error['code']}: {error['message']}, {reason}", reason)

    def get(self, api: str, path: str) -> Values:
        return self.send("GET", api, path, None)

    def compute(self, verb: str, path: str, body: Values | None = None) -> None:
        """A change in Compute, to the end of its operation."""
        operation = self._patiently(verb, "compute", path, body)
        where = operation["selfLink"].partition("compute/v1/")[2]
        for _ in range(POLLS):
            if operation["status"] == "DONE":
                break
            operation = self.send("POST", "compute", f"{where}/wait", None)
        else:
            raise Refused(f"{where} isn't done after {POLLS} looks")
        errors = operation.get("error", {}).get("errors", [])
        if errors:
            code, message = errors[0]["code"], errors[0]["message"]
            raise Refused(f"Error waiting for {verb} {path}: {code}: {message}", code)

    def long(self, verb: str, path: str, body: Values | None, api: str) -> None:
        """A change in an API with long-running operations."""
        operation = self._patiently(verb, api, path, body)
        for _ in range(POLLS):
            if operation.get("done"):
                return
            operation = self.get(api, operation["name"])
        raise Refused(f"{operation['name']} isn't done after {POLLS} looks")

    def _patiently(self, verb: str, api: str, path: str, body: Values | None) -> Values:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self.send(verb, api, path, body)
            except Refused as error:
                busy = error.reason in ("resourceInUseByAnotherResource", "resourceNotReady")
                if not busy or attempt == ATTEMPTS:
                    raise
            time.sleep(BETWEEN_S)
        raise AssertionError
