"""What a cluster costs: the estimate before, the cap, the receipt after.

Pure: values in, values out. Unknown is None, never zero.
"""

from __future__ import annotations

from datetime import datetime

from infra.cluster import Cluster, Price
from infra.errors import SpecError
from infra.spec import ClusterSpec


def total_usd(price: Price, *, seconds: float) -> float | None:
    return None if price.usd_per_hour is None else price.usd_per_hour * seconds / 3600


def dollars(amount: float | None) -> str:
    return "unknown" if amount is None else f"${amount:.2f}"


def estimate(spec: ClusterSpec, price: Price) -> str:
    """One line for `pulumi preview`: per hour, and at most, until the lifetime guard ends it."""
    most = total_usd(price, seconds=spec.max_lifetime_s)
    return (
        f"estimated cost: {dollars(price.usd_per_hour)} per hour, at most {dollars(most)} until the guard ends "
        f"the nodes {spec.max_lifetime_s / 3600:g} h after creation ({price.source}, as of {price.as_of:%Y-%m-%d})"
    )


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
