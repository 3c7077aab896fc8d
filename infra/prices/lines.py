"""Lines of an estimate from the catalogue: what bills by the month, by the hour, and by use."""

from __future__ import annotations

from datetime import UTC, datetime

from infra import prices
from infra.cost import HOURS_PER_MONTH, Line

Told = tuple[float | None, str, datetime]
"""USD per hour, source, date."""


def machine(provider: str, *, region: str, instance: str, market: prices.Market) -> Told:
    """One machine, by the catalogue."""
    known = prices.machine(provider, region=region, instance=instance, market=market)
    if known is None:
        return None, f"no price known for {instance} in {region}, {market}", datetime.now(UTC)
    return known.usd, known.source, known.as_of


def per_hour(provider: str, name: str, amount: float = 1.0) -> float | None:
    """USD for an hour of so many; None when the catalogue doesn't know."""
    price = prices.other(provider, name)
    return None if price is None else price.usd * amount


def per_month(provider: str, name: str, gib: float) -> float | None:
    """USD per hour of so many GiB of what is priced by GiB and month."""
    return per_hour(provider, name, gib / HOURS_PER_MONTH)


def monthly(provider: str, name: str, what: str, gib: int, *, outlives_guard: bool = False) -> Line:
    return _line(provider, name, what, per_month(provider, name, gib), outlives_guard=outlives_guard)


def hourly(provider: str, name: str, what: str, *, count: int = 1, use: str = "", outlives_guard: bool = True) -> Line:
    """`use`: what comes on top for each unit that goes through it."""
    on_top = prices.other(provider, use) if use else None
    told = f"and ${on_top.usd:g} per {on_top.unit} through it" if on_top else ""
    return _line(provider, name, what, per_hour(provider, name, count), per_use=told, outlives_guard=outlives_guard)


def by_use(provider: str, name: str, what: str) -> Line:
    """What costs nothing while it is empty."""
    price = prices.other(provider, name)
    told = f"and ${price.usd:g} per GiB and month in it" if price else "and what is in it, at a price that isn't known"
    return Line(
        what=f"{what}, empty",
        usd_per_hour=0.0,
        source=price.source if price else "unknown",
        as_of=price.as_of if price else datetime.now(UTC),
        per_use=told,
        outlives_guard=True,
    )


def _line(
    provider: str, name: str, what: str, usd_per_hour: float | None, *, per_use: str = "", outlives_guard: bool
) -> Line:
    price = prices.other(provider, name)
    if price is None:
        source, as_of = f"no price known for {name}", datetime.now(UTC)
        return Line(what=what, usd_per_hour=None, source=source, as_of=as_of, outlives_guard=outlives_guard)
    return Line(
        what=what,
        usd_per_hour=usd_per_hour,
        source=price.source,
        as_of=price.as_of,
        per_use=per_use,
        outlives_guard=outlives_guard,
    )
