"""What AWS and GCP charge, from dated files beside this one: list prices for the estimate before anything is created.

Figures only, each with its source and date, because the providers' own price lists need credentials or hundreds of
megabytes. `aws.json` and `gcp.json` say in `notes` how they were made. What isn't in them is unknown: None, never 0.
A file that is missing or broken is a fault of this checkout, so it raises as it is.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, PositiveFloat

FOLDER = Path(__file__).parent

Market = Literal["on-demand", "spot", "flex-start"]


@dataclass(frozen=True, kw_only=True)
class CataloguePrice:
    usd: float
    """For one `unit`."""
    unit: str
    """"hour" for machines; for the rest also "GB", "GiB-month" and the like."""
    source: str
    """Where the figure is from; "from memory, not checked" where nothing better was found."""
    as_of: datetime
    """Start of that day, UTC."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Machine(_Strict):
    on_demand: PositiveFloat | None
    spot: PositiveFloat | None
    source: str | None = None
    """Of this entry, where it isn't the file's."""
    as_of: date | None = None


class _Other(_Strict):
    usd: PositiveFloat
    unit: str
    source: str
    as_of: date


class _Catalogue(_Strict):
    as_of: date
    source: str
    notes: list[str]
    usd_per_hour: dict[str, dict[str, _Machine]]
    """Region to instance type to the price of the whole machine."""
    other: dict[str, _Other]


def machine(provider: str, *, region: str, instance: str, market: Market) -> CataloguePrice | None:
    """One machine for one hour, without disks, addresses and traffic. None when unknown, as flex-start always is."""
    catalogue = _catalogue(provider)
    entry = catalogue.usd_per_hour.get(region, {}).get(instance)
    if entry is None or market == "flex-start":
        return None
    usd = entry.on_demand if market == "on-demand" else entry.spot
    if usd is None:
        return None
    as_of = start_of(entry.as_of or catalogue.as_of)
    return CataloguePrice(usd=usd, unit="hour", source=entry.source or catalogue.source, as_of=as_of)


def machines(provider: str) -> list[tuple[str, str]]:
    """Region and instance type of all that the catalogue has an entry of, be a price known or not."""
    return [(region, name) for region, entries in _catalogue(provider).usd_per_hour.items() for name in entries]


def origin(provider: str) -> tuple[str, datetime]:
    """Source and date of the catalogue as a whole: for a machine whose price it doesn't know."""
    catalogue = _catalogue(provider)
    return catalogue.source, start_of(catalogue.as_of)


def other(provider: str, name: str) -> CataloguePrice | None:
    """What isn't a machine ("gp3", "public_ipv4"), in the region that the file's notes name; None when unknown."""
    entry = _catalogue(provider).other.get(name)
    if entry is None:
        return None
    return CataloguePrice(usd=entry.usd, unit=entry.unit, source=entry.source, as_of=start_of(entry.as_of))


@functools.cache
def _catalogue(provider: str) -> _Catalogue:
    return _Catalogue.model_validate_json((FOLDER / f"{provider}.json").read_text(encoding="utf-8"))


def start_of(day: date) -> datetime:
    """UTC: the moment that a figure of that day is dated with."""
    return datetime.combine(day, time(), tzinfo=UTC)
