"""What `fab prices` was asked for, and which offers fit it. Pure: values in, values out."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from infra.cost import dollars
from infra.errors import NoOfferError, SpecError
from infra.offers import places
from infra.offers.offer import Offer, order

_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_ -]*")


@dataclass(frozen=True, kw_only=True)
class Wish:
    """None is "any"."""

    gpu: str | None = None
    count: int | None = None
    """GPUs in one machine, exactly."""
    nodes: int = 1
    is_spot: bool = False
    """Spot only; else both markets."""
    region: str | None = None
    max_usd_per_hour: float | None = None
    """For all nodes."""

    def __str__(self) -> str:
        gpus = f"{self.gpu or 'any GPU'}{f':{self.count}' if self.count else ''}"
        told = f"{self.nodes} × {gpus}" + (", spot" if self.is_spot else "")
        told += f", in {self.region}" if self.region else ""
        return told + (f", for at most {dollars(self.max_usd_per_hour)} per hour" if self.max_usd_per_hour else "")


def parse(
    *, gpu: str | None, count: str | None, nodes: str | None, is_spot: bool, region: str | None, max_hourly: str | None
) -> Wish:
    """From the words of a command line; raises SpecError with the option in front."""
    if gpu is not None and not _MODEL.fullmatch(gpu):
        raise SpecError(f"--gpu {gpu!r} is no GPU model: write the model alone, as in --gpu H100 --count 8")
    if region is not None and not region.strip():
        raise SpecError(f"--region is empty: write a region, its beginning, a country's code or {_words()}")
    return Wish(
        gpu=gpu,
        count=None if count is None else _whole("--count", count),
        nodes=1 if nodes is None else _whole("--nodes", nodes),
        is_spot=is_spot,
        region=None if region is None else region.strip(),
        max_usd_per_hour=None if max_hourly is None else _dollars("--max-hourly", max_hourly),
    )


def fitting(offers: Iterable[Offer], wish: Wish) -> list[Offer]:
    """Those that fit, cheapest GPU first, unknown prices last. Under a cap an unknown price doesn't fit."""
    return sorted((each for each in offers if fits(each, wish)), key=order)


def left_out(offers: Iterable[Offer], wish: Wish) -> list[str]:
    """A sentence each about offers that may fit, where not enough is known to say so."""
    looser = fitting(offers, replace(wish, region=None, max_usd_per_hour=None))
    placeless = sorted({each.provider for each in looser if each.region is None})
    priceless = sorted({each.provider for each in looser if each.usd_per_hour is None})
    told = []
    if wish.region is not None and placeless:
        told.append(f"{', '.join(placeless)}: offers without a region are left out by --region")
    if wish.max_usd_per_hour is not None and priceless:
        told.append(f"{', '.join(priceless)}: offers at an unknown price are left out by --max-hourly")
    return told


def nothing(offers: Iterable[Offer], wish: Wish) -> NoOfferError:
    """Why no offer fits `wish`, in one sentence: the one option that, left out, would let some through."""
    offers = list(offers)
    models = {_plain(each.gpu_model): each.gpu_model for each in offers}
    if wish.gpu is not None and models and _plain(wish.gpu) not in models:
        near = difflib.get_close_matches(_plain(wish.gpu), models, n=3, cutoff=0.5) or sorted(models)
        known = ", ".join(models[name] for name in near)
        return NoOfferError(f"no provider has a machine with {wish.gpu} GPUs: take a model such as {known}")
    without = {
        "--max-hourly": replace(wish, max_usd_per_hour=None),
        "--region": replace(wish, region=None),
        "--spot": replace(wish, is_spot=False),
        "--count": replace(wish, count=None),
        "--nodes": replace(wish, nodes=1),
    }
    for option, looser in without.items():
        if looser != wish and (found := fitting(offers, looser)):
            return NoOfferError(f"no provider offers {wish}: {len(found)} offer(s) would fit without {option}")
    return NoOfferError(f"no provider offers {wish}: ask for less")


def same_model(one: str, other: str) -> bool:
    """H100 and h100, RTX-4090 and RTX4090: providers and catalogues write them in their own ways."""
    return _plain(one) == _plain(other)


def fits(offer: Offer, wish: Wish) -> bool:
    """Whether it is what was asked for."""
    usd = offer.usd_per_hour_of(wish.nodes)
    return (
        (wish.gpu is None or same_model(offer.gpu_model, wish.gpu))
        and wish.count in (None, offer.gpu_count)
        and offer.fewest_nodes <= wish.nodes <= (offer.most_nodes or math.inf)
        and (not wish.is_spot or offer.market == "spot")
        and (wish.region is None or places.is_in(wish.region, provider=offer.provider, region=offer.region))
        and (wish.max_usd_per_hour is None or (usd is not None and usd <= wish.max_usd_per_hour))
    )


def _plain(model: str) -> str:
    return re.sub(r"[^A-Z0-9]", "", model.upper())


def _whole(option: str, text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        raise SpecError(f"{option} {text!r} is no whole number from 1 on: write one, as in {option} 8")
    return int(text)


def _dollars(option: str, text: str) -> float:
    try:
        usd = float(text)
    except ValueError:
        usd = math.nan
    if not 0 < usd < math.inf:
        raise SpecError(f"{option} {text!r} is no amount above 0: write US dollars per hour, as in {option} 60")
    return usd


def _words() -> str:
    return " or ".join(places.continents())
