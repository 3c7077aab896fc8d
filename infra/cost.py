"""What a cluster costs: the estimate before, the cap, the receipt after.

Pure: values in, values out. Unknown is None, never zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from infra.cluster import Cluster, Price
from infra.errors import SpecError
from infra.spec import ClusterSpec

HOURS_PER_MONTH = 730  # as the clouds' own price pages count: 365 * 24 / 12


@dataclass(frozen=True, kw_only=True)
class Line:
    """One thing that bills: what it is and how many, for all of them per hour, and where the figure is from."""

    what: str
    usd_per_hour: float | None
    """None: unknown, and so is then the whole."""
    source: str
    as_of: datetime
    outlives_guard: bool = False
    """Whether it bills on when the guard has ended the machines, until `make destroy`."""
    per_use: str = ""
    """What comes on top by use, and isn't in the sum: "and $0.045 per GB through it"."""


def total_usd(price: Price, *, seconds: float) -> float | None:
    return None if price.usd_per_hour is None else price.usd_per_hour * seconds / 3600


def total(lines: Iterable[Line]) -> Price:
    """The sum; unknown if one line is. Source and date: of an unknown or the dearest line (the estimate has all)."""
    lines = list(lines)
    first = max(lines, key=lambda line: math.inf if line.usd_per_hour is None else line.usd_per_hour)
    return Price(
        usd_per_hour=_sum(lines),
        source=first.source if len(lines) == 1 else f"{first.source}, and {len(lines) - 1} smaller one(s)",
        as_of=first.as_of,
        usd_per_hour_after_guard=_sum([line for line in lines if line.outlives_guard]),
    )


def _sum(lines: list[Line]) -> float | None:
    known = [line.usd_per_hour for line in lines if line.usd_per_hour is not None]
    return sum(known) if len(known) == len(lines) else None


def dollars(amount: float | None) -> str:
    return "unknown" if amount is None else f"${amount:.2f}"


def estimate(spec: ClusterSpec, lines: Iterable[Line]) -> str:
    """For `pulumi preview`: per hour, at most until the guard, and after it; then each thing with source and age."""
    lines = list(lines)
    price = total(lines)
    most = total_usd(price, seconds=spec.max_lifetime_s)
    told = [
        f"  {_small(line.usd_per_hour):>9} per hour  {line.what} ({line.source}, as of {line.as_of:%Y-%m-%d})"
        + (f"; {line.per_use}" if line.per_use else "")
        + ("; until `make destroy`" if line.outlives_guard else "")
        for line in lines
    ]
    whole = (
        f"estimated cost: {dollars(price.usd_per_hour)} per hour, at most {dollars(most)} until the guard ends "
        f"the nodes {spec.max_lifetime_s / 3600:g} h after creation{after_guard(price)}"
    )
    return "\n".join([whole, *told])


def after_guard(price: Price) -> str:
    """For the end of a sentence about the guard: what it doesn't end, "" when that is nothing."""
    after = price.usd_per_hour_after_guard
    return "" if after == 0 else f", and {_small(after)} per hour after that, until `make destroy`"


def _small(amount: float | None) -> str:
    """With as many digits as show that it isn't nothing: an address costs half a cent."""
    return "unknown" if amount is None else f"${amount:.2f}" if amount == 0 or amount >= 0.1 else f"${amount:.4f}"


def refuse_above_cap(spec: ClusterSpec, price: Price, *, file: str) -> None:
    """Raises SpecError when the cap is passed, or can't be checked because the price is unknown."""
    cap = spec.max_hourly_usd
    if cap is None:
        return
    where = f"{file}, key trainstack:cluster.max_hourly_usd"
    if price.usd_per_hour is None:
        raise SpecError(
            f"{where} is {dollars(cap)}, but the price is unknown ({price.source}): remove the cap to go on without one"
        )
    if price.usd_per_hour > cap:
        raise SpecError(
            f"{where} is {dollars(cap)}, but this cluster costs {dollars(price.usd_per_hour)} per hour "
            f"({price.source}): ask for less or raise the cap"
        )


def receipt(cluster: Cluster, *, ended_at: datetime) -> str:
    """One line after the end: seconds, rate, total, source. After the guard's end only what it leaves is counted."""
    price, lifetime = cluster.price, max(0.0, (min(ended_at, cluster.expires_at) - cluster.created_at).total_seconds())
    after = max(0.0, (ended_at - cluster.expires_at).total_seconds())
    usd, rest = total_usd(price, seconds=lifetime), price.usd_per_hour_after_guard
    told = f"{len(cluster.nodes)} node(s) for {lifetime:.0f} s at {dollars(price.usd_per_hour)} per hour"
    if after and rest != 0:
        told += f", and what the guard doesn't end for {after:.0f} s at {_small(rest)}"
        usd = None if usd is None or rest is None else usd + rest * after / 3600
    return f"receipt: stack {cluster.stack}, {told} = {dollars(usd)} ({price.source}, as of {price.as_of:%Y-%m-%d})"
