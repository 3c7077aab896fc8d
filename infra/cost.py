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
    per_use: str = ""
    """What comes on top by use, and isn't in the sum: "and $0.045 per GB through it"."""


def total_usd(price: Price, *, seconds: float) -> float | None:
    return None if price.usd_per_hour is None else price.usd_per_hour * seconds / 3600


def total(lines: Iterable[Line]) -> Price:
    """The sum; unknown if one line is. Source and date: of an unknown or the dearest line (the estimate has all)."""
    lines = list(lines)
    known = [line.usd_per_hour for line in lines if line.usd_per_hour is not None]
    first = max(lines, key=lambda line: math.inf if line.usd_per_hour is None else line.usd_per_hour)
    return Price(
        usd_per_hour=sum(known) if len(known) == len(lines) else None,
        source=first.source if len(lines) == 1 else f"{first.source}, and {len(lines) - 1} smaller one(s)",
        as_of=first.as_of,
    )


def dollars(amount: float | None) -> str:
    return "unknown" if amount is None else f"${amount:.2f}"


def estimate(spec: ClusterSpec, lines: Iterable[Line]) -> str:
    """For `pulumi preview`: each thing that bills with source and age, then per hour and at most, until the guard."""
    lines = list(lines)
    price = total(lines)
    most = total_usd(price, seconds=spec.max_lifetime_s)
    told = [
        f"  {_small(line.usd_per_hour):>9} per hour  {line.what} ({line.source}, as of {line.as_of:%Y-%m-%d})"
        + (f"; {line.per_use}" if line.per_use else "")
        for line in lines
    ]
    whole = (
        f"estimated cost: {dollars(price.usd_per_hour)} per hour, at most {dollars(most)} until the guard ends "
        f"the nodes {spec.max_lifetime_s / 3600:g} h after creation"
    )
    return "\n".join([whole, *told])


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
    """One line after the end: seconds, rate, total, source. Never counts time after the guard ended the nodes."""
    end = min(ended_at, cluster.expires_at)
    seconds = max(0.0, (end - cluster.created_at).total_seconds())
    return (
        f"receipt: stack {cluster.stack}, {len(cluster.nodes)} node(s) for {seconds:.0f} s at "
        f"{dollars(cluster.price.usd_per_hour)} per hour = {dollars(total_usd(cluster.price, seconds=seconds))} "
        f"({cluster.price.source}, as of {cluster.price.as_of:%Y-%m-%d})"
    )
