"""What a test can set in the stand-in for AWS, and what the stand-in noted: capacity, quotas, faults, the call log.

One `State` belongs to one server process. Everything is counted in calls, never in seconds, so that a test has the
same course on a slow machine.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from typing import Any

# vCPUs, and addresses; the numbers are a new account's with some GPU quota granted.
QUOTAS: dict[str, tuple[str, float]] = {
    "L-1216C47A": ("Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", 256.0),
    "L-DB2E81BA": ("Running On-Demand G and VT instances", 768.0),
    "L-417A185B": ("Running On-Demand P instances", 1536.0),
    "L-34B43A08": ("All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests", 256.0),
    "L-3819A6DF": ("All G and VT Spot Instance Requests", 768.0),
    "L-0263D0A3": ("EC2-VPC Elastic IPs", 5.0),
    "L-7212CCBC": ("All P4, P3 and P2 Spot Instance Requests", 1536.0),
}


class AwsError(Exception):
    """An answer as AWS gives it when it refuses."""

    def __init__(self, code: str, message: str, *, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request, as botocore's model of the service reads it."""

    service: str
    operation: str
    region: str
    params: dict[str, Any]


@dataclass(kw_only=True)
class PlannedFailure:
    """`operation` answers `code` for the next `times` calls."""

    operation: str
    code: str
    message: str
    times: int
    status: int = 400


@dataclass(kw_only=True)
class Hang:
    """The nth call of `operation` blocks before it is executed, or before it is answered, until released."""

    operation: str
    when: str
    nth: int = 1
    call: int | None = None
    released: threading.Event = field(default_factory=threading.Event)
    execute: bool = True

    def to_json(self) -> dict[str, Any]:
        return {"operation": self.operation, "when": self.when, "call": self.call}


class State:
    """Thread-safe by one lock; `changed` tells those who wait for a call to hang."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.reset()

    def reset(self) -> None:
        """As a new account: no faults, no calls noted; whatever hangs is let go without being executed."""
        with self.changed:
            for hang in getattr(self, "hangs", []):
                hang.execute = False
                hang.released.set()
            self.capacity: dict[tuple[str, str], int] = {}
            self.offerings: dict[str, list[str]] = {}
            self.quotas = {code: value for code, (_, value) in QUOTAS.items()}
            self.prices: dict[tuple[str, str], float] = {}
            self.spot_prices: dict[tuple[str, str], float] = {}
            self.block_offerings: list[dict[str, Any]] = []
            self.failures: list[PlannedFailure] = []
            self.hangs: list[Hang] = []
            self.invisible: dict[str, int] = {}
            self.hidden: dict[str, int] = {}
            self.slow_terminations: list[int] = []
            self.stillborn: list[str] = []
            self.expired_after: int | None = None
            self.expired_code = "ExpiredToken"
            self.calls: list[dict[str, Any]] = []
            self.numbers = itertools.count(1)
            self.placement_groups: dict[tuple[str, str], dict[str, Any]] = {}
            self.reservations: dict[str, dict[str, Any]] = {}
            self.launches: dict[tuple[str, str], tuple[str, Any]] = {}
            self.launch_details: dict[str, dict[str, Any]] = {}
            self.shutting_down: dict[str, int] = {}

    # -- what a test sets -------------------------------------------------------------------------------------------

    def apply(self, wish: dict[str, Any]) -> None:
        """One JSON object of POST /_stand_in/faults: {"set": <name>, ...}. A name that isn't known is a KeyError."""
        wish = dict(wish)
        getattr(self, f"_set_{wish.pop('set')}")(**wish)

    def _set_capacity(self, *, zone: str, instance_type: str, machines: int) -> None:
        self.capacity[(zone, instance_type)] = machines

    def _set_offering(self, *, instance_type: str, zones: list[str]) -> None:
        self.offerings[instance_type] = zones

    def _set_quota(self, *, code: str, vcpus: float) -> None:
        if code not in QUOTAS:
            raise KeyError(f"no quota {code}: {', '.join(QUOTAS)}")
        self.quotas[code] = vcpus

    def _set_price(self, *, instance_type: str, region: str, usd_per_hour: float) -> None:
        self.prices[(instance_type, region)] = usd_per_hour

    def _set_spot_price(self, *, instance_type: str, zone: str, usd_per_hour: float) -> None:
        self.spot_prices[(instance_type, zone)] = usd_per_hour

    def _set_block_offering(self, **offering: Any) -> None:
        self.block_offerings.append(offering)

    def _set_failure(self, **failure: Any) -> None:
        with self.changed:
            self.failures.append(PlannedFailure(**failure))

    def _set_no_faults(self) -> None:
        with self.changed:
            self.failures.clear()
            self.invisible.clear()
            self.hidden.clear()
            self.slow_terminations.clear()
            self.stillborn.clear()
            self.expired_after = None

    def _set_hang(self, **hang: Any) -> None:
        if hang["when"] not in ("before", "after"):
            raise KeyError("when: before or after")
        with self.changed:
            self.hangs.append(Hang(**hang))

    def _set_invisible(self, *, operation: str, describes: int) -> None:
        self.invisible[operation] = describes

    def _set_slow_termination(self, *, describes: int, instances: int) -> None:
        self.slow_terminations += [describes] * instances

    def _set_stillborn(self, *, reason: str, instances: int) -> None:
        self.stillborn += [reason] * instances

    def _set_expired(self, *, after_calls: int, code: str) -> None:
        with self.changed:
            self.expired_after, self.expired_code = after_calls, code

    # -- what the server asks ---------------------------------------------------------------------------------------

    def note(self, call: Call, time_s: float) -> dict[str, Any]:
        """The entry of the call log; `outcome` is filled in when the call was answered."""
        with self.changed:
            entry = {
                "number": next(self.numbers),
                "service": call.service,
                "operation": call.operation,
                "region": call.region,
                "params": call.params,
                "time_s": time_s,
                "outcome": None,
            }
            self.calls.append(entry)
            return entry

    def refuse_if_planned(self, call: Call) -> None:
        """Raise what a test asked for: expired credentials first, as AWS checks them first."""
        with self.changed:
            if self.expired_after is not None:
                if self.expired_after <= 0:
                    raise AwsError(self.expired_code, "The security token included in the request is expired")
                self.expired_after -= 1
            for failure in self.failures:
                if failure.operation in (call.operation, "*") and failure.times > 0:
                    failure.times -= 1
                    raise AwsError(failure.code, failure.message, status=failure.status)

    def hang_if_planned(self, call: Call, number: int, when: str) -> bool:
        """Block while a test wants it. False when the call is to be dropped."""
        with self.changed:
            matching = [h for h in self.hangs if h.call is None and (h.operation, h.when) == (call.operation, when)]
            for each in matching:
                each.nth -= 1
            hang = next((each for each in matching if each.nth == 0), None)
            if hang is None:
                return True
            hang.call = number
            self.changed.notify_all()
        hang.released.wait()
        with self.changed:
            if hang in self.hangs:
                self.hangs.remove(hang)
        return hang.execute

    def wait_until_hanging(self, operation: str, timeout_s: float) -> bool:
        """Whether a call of `operation` hangs, waiting for one if need be."""

        def hanging() -> bool:
            return any(h.operation == operation and h.call is not None for h in self.hangs)

        with self.changed:
            return self.changed.wait_for(hanging, timeout=timeout_s)

    def release(self, *, execute: bool) -> int:
        """Let go all calls that hang; `execute=False` drops those that hang before being executed."""
        with self.changed:
            hanging = [hang for hang in self.hangs if hang.call is not None]
            for hang in hanging:
                hang.execute = execute
                hang.released.set()
            self.hangs = [hang for hang in self.hangs if hang.call is None]
            return len(hanging)

    def to_json(self) -> dict[str, Any]:
        with self.changed:
            return {
                "calls": len(self.calls),
                "hanging": [hang.to_json() for hang in self.hangs if hang.call is not None],
                "capacity": [
                    {"zone": zone, "instance_type": kind, "machines": left}
                    for (zone, kind), left in self.capacity.items()
                ],
                "quotas": self.quotas,
                "failures": {failure.operation: failure.times for failure in self.failures if failure.times},
                "hidden": self.hidden,
            }


STATE = State()
