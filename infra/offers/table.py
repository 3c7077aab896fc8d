"""The answer of `fab prices`: a table for people, one JSON document for programs. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Hashable, Iterable, Sequence
from datetime import datetime
from typing import Any

from infra.offers.offer import OFFERS, STALE_AFTER, Offer
from infra.offers.wish import Wish

_HEAD = (
    "$/h",
    "$/GPU-h",
    "market",
    "provider",
    "machines",
    "GPU",
    "GiB",
    "region",
    "network",
    "free now",
    "price from",
)
_RIGHT = ("$/h", "$/GPU-h", "GiB")
_FREE = {True: "yes", False: "no", None: "unknown"}
_REGIONS = 2
"""How many are named in one line."""


def text(offers: Sequence[Offer], notes: Iterable[str], *, wish: Wish, now: datetime) -> str:
    """A line each, regions with all else equal in one; below it where figures are from, and what couldn't be asked."""
    merged = _merged(offers)
    numbers = {origin: number for number, origin in enumerate(dict.fromkeys(map(_origin, offers)), 1)}
    rows = [_HEAD, *(_row(each, regions, numbers[_origin(each)], wish=wish, now=now) for each, regions in merged)]
    told = aligned(rows, right=_RIGHT)
    below = [f"[{number}] {source}, as of {as_of:%Y-%m-%d}" for (source, as_of), number in numbers.items()]
    if any(each.is_stale(now) for each in offers):
        below.append(
            f"stale: older than {STALE_AFTER.days} days; look at the provider's own price before you rely on it"
        )
    return "\n".join([*told, "", *below, *notes])


def aligned(rows: Sequence[Sequence[str]], *, right: Sequence[str]) -> list[str]:
    """Lines of equal columns; `right`: names, in the first row, of the columns that end at their right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(rows[0], row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def document(offers: Sequence[Offer], notes: Iterable[str], *, wish: Wish, now: datetime) -> str:
    """JSON: what was asked for, the offers as they are and with what follows from them, the notes."""
    rows: list[dict[str, Any]] = OFFERS.dump_python(tuple(offers), mode="json")
    for offer, row in zip(offers, rows, strict=True):
        row["usd_per_hour_all_nodes"] = offer.usd_per_hour_of(wish.nodes)
        row["usd_per_gpu_hour"] = offer.usd_per_gpu_hour
        row["age_days"] = offer.age_days(now)
        row["is_stale"] = offer.is_stale(now)
    whole = {"asked": dataclasses.asdict(wish), "asked_at": now.isoformat(), "offers": rows, "notes": list(notes)}
    return json.dumps(whole, indent=2, ensure_ascii=False)


def _merged(offers: Iterable[Offer]) -> list[tuple[Offer, list[str]]]:
    """In the same order; offers that differ by nothing but the region are one, with all their regions."""
    found: dict[Hashable, tuple[Offer, list[str]]] = {}
    for each in offers:
        _, regions = found.setdefault(dataclasses.replace(each, region=None), (each, []))
        regions += [each.region] if each.region else []
    return list(found.values())


def _row(offer: Offer, regions: list[str], number: int, *, wish: Wish, now: datetime) -> tuple[str, ...]:
    named = ", ".join(regions[:_REGIONS]) + (f" and {len(regions) - _REGIONS} more" if len(regions) > _REGIONS else "")
    return (
        _dollars(offer.usd_per_hour_of(wish.nodes)),
        _dollars(offer.usd_per_gpu_hour),
        offer.market,
        offer.provider,
        f"{wish.nodes} × {offer.instance}",
        f"{offer.gpu_count} × {offer.gpu_model}",
        "unknown" if offer.gpu_memory_gib is None else f"{offer.gpu_memory_gib:g}",
        named or "unknown",
        offer.network,
        _FREE[offer.available],
        f"[{number}] {offer.age_days(now)} d" + (", stale" if offer.is_stale(now) else ""),
    )


def _dollars(amount: float | None) -> str:
    return "unknown" if amount is None else f"{amount:.2f}"


def _origin(offer: Offer) -> tuple[str, datetime]:
    return offer.source, offer.as_of
