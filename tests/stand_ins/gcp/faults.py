"""What a test ordered to go wrong, and the log of calls. Counted in calls, never in seconds."""

from __future__ import annotations

import fnmatch
import itertools
import threading
from dataclasses import dataclass, field
from typing import Any

from tests.stand_ins.gcp import catalogue
from tests.stand_ins.gcp.errors import GcpError, api_off, in_use

_UNTIL = 10**9


@dataclass(kw_only=True)
class Planned:
    """`times` answers to methods that match ("compute.instances.*") are of this kind."""

    method: str
    kind: str
    """error, malformed, empty, in_use"""
    times: int
    skip: int = 0
    """Calls that go well before."""
    error: GcpError | None = None

    def takes(self, method: str) -> bool:
        if self.times <= 0 or not fnmatch.fnmatchcase(method, self.method):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        return True


@dataclass(kw_only=True)
class Hang:
    method: str
    when: str
    nth: int = 1
    call: int | None = None
    execute: bool = True
    released: threading.Event = field(default_factory=threading.Event)


class Faults:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.calls: list[dict[str, Any]] = []
        self.planned: list[Planned] = []
        self.hangs: list[Hang] = []
        self.apis_off: set[str] = set()
        self.tokens: dict[str, int] = {}
        self.generation = 0
        self.key_revoked = False
        self.expire_in: int | None = None
        self.revoke_in: int | None = None
        self.capacity: dict[tuple[str, str], tuple[int, str]] = {}
        self.unsupported: set[tuple[str, str]] = set()
        self.hide: list[tuple[str, int]] = []
        self.stopping: list[tuple[str, int]] = []
        self._numbers = itertools.count(1)

    # -- ordered by a test ------------------------------------------------------------------------------------------

    def plan_error(self, *, method: str, code: int, reason: str, message: str, times: int | None, skip: int) -> None:
        domain = "usageLimits" if "rate" in reason.lower() else "global"
        error = GcpError(code, reason, message, domain=domain)
        self.planned.append(
            Planned(method=method, kind="error", times=_UNTIL if times is None else times, skip=skip, error=error)
        )

    def plan(self, *, method: str, kind: str, times: int | None) -> None:
        self.planned.append(Planned(method=method, kind=kind, times=_UNTIL if times is None else times))

    def plan_hang(self, *, method: str, when: str, nth: int) -> None:
        if when not in ("before", "after"):
            raise ValueError("when: before or after")
        with self.changed:
            self.hangs.append(Hang(method=method, when=when, nth=nth))

    # -- asked by the server ----------------------------------------------------------------------------------------

    def note(self, method: str, arguments: dict[str, str], query: dict[str, str], body: Any) -> dict[str, Any]:
        entry = {
            "number": next(self._numbers),
            "method": method,
            "arguments": arguments,
            "query": query,
            "body": body,
            "outcome": None,
        }
        self.calls.append(entry)
        return entry

    def authorise(self, token: str, method: str) -> None:
        """Raise 401 for a token that isn't good (any more)."""
        if self.revoke_in is not None:
            if self.revoke_in <= 0:
                self.key_revoked = True
            self.revoke_in -= 1
        if self.expire_in is not None:
            if self.expire_in <= 0:
                self.generation += 1
                self.expire_in = None
            else:
                self.expire_in -= 1
        if self.key_revoked or self.tokens.get(token, -1) < self.generation:
            raise GcpError(
                401,
                "authError",
                "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other "
                f"valid authentication credential. ({method})",
            )

    def api(self, api: str) -> None:
        if api in self.apis_off:
            raise api_off(api, catalogue.PROJECT)

    def error_for(self, method: str) -> None:
        for planned in self.planned:
            if planned.kind == "error" and planned.takes(method):
                assert planned.error is not None
                raise planned.error

    def spoils(self, method: str) -> str | None:
        """ "malformed" or "empty": what the body of the answer shall be."""
        return next((p.kind for p in self.planned if p.kind in ("malformed", "empty") and p.takes(method)), None)

    def in_use(self, method: str, kind: str, path: str) -> None:
        if any(p.kind == "in_use" and p.takes(method) for p in self.planned):
            raise in_use(kind, path, f"projects/{catalogue.PROJECT}/zones/us-central1-a/instances/someone-elses")

    def hang(self, method: str, number: int, when: str) -> bool:
        """Block while a test wants it; False when the call is to be dropped. Called without the emulator's lock."""
        with self.changed:
            matching = [
                h for h in self.hangs if h.call is None and h.when == when and fnmatch.fnmatchcase(method, h.method)
            ]
            for each in matching:
                each.nth -= 1
            hang = next((each for each in matching if each.nth == 0), None)
            if hang is None:
                return True
            hang.call = number
            self.changed.notify_all()
        hang.released.wait()
        return hang.execute

    def wait_until_hanging(self, method: str, timeout_s: float) -> bool:
        def hanging() -> bool:
            return any(h.call is not None and fnmatch.fnmatchcase(method, h.method) for h in self.hangs)

        with self.changed:
            return self.changed.wait_for(hanging, timeout=timeout_s)

    def release(self, *, execute: bool) -> int:
        with self.changed:
            hanging = [hang for hang in self.hangs if hang.call is not None]
            for hang in hanging:
                hang.execute = execute
                hang.released.set()
            self.hangs = [hang for hang in self.hangs if hang.call is None]
            return len(hanging)

    def taken(self, orders: list[tuple[str, int]], key: str) -> int:
        """The number ordered for `key` (a method, a name) by the first order that matches, which is used up."""
        for order in orders:
            if fnmatch.fnmatchcase(key, order[0]):
                orders.remove(order)
                return order[1]
        return 0
