"""In which country a provider's region is, and whether it is the place that a user means. Facts: places.json."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict

TABLE = Path(__file__).with_name("places.json")


class _Places(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    notes: list[str]
    continents: dict[str, list[str]]
    """A word ("eu") to ISO 3166 codes of countries."""
    regions: dict[str, dict[str, str]]
    """Provider to beginnings of its regions' names to a country, or to a continent's word where no more is known."""


def is_in(wanted: str, *, provider: str, region: str | None) -> bool:
    """Whether `region` is what `wanted` names: itself, its beginning, its country's code, or a continent's word.

    A region that isn't told is nowhere.
    """
    if region is None:
        return False
    word = wanted.casefold()
    place = place_of(provider, region)
    continent = next((name for name, countries in _places().continents.items() if place in (name, *countries)), None)
    return region.casefold().startswith(word) or word in (continent, (place or "").casefold())


def continents() -> tuple[str, ...]:
    return tuple(_places().continents)


def place_of(provider: str, region: str) -> str | None:
    """ISO code of the country ("NL"), or a continent's word where no more is known; None where nothing is.

    Providers without a table of their own have the code in the region's name: EU-NL-1, NL, us-texas.
    """
    table = _places().regions.get(provider)
    if table is not None:
        return table.get(max((start for start in table if region.startswith(start)), key=len, default=""))
    known = {country for countries in _places().continents.values() for country in countries}
    words = re.split(r"[^A-Za-z]+", region.upper())
    return next((word for word in words if word in known), None)


@functools.cache
def _places() -> _Places:
    return _Places.model_validate_json(TABLE.read_text(encoding="utf-8"))
