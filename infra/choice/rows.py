"""Offers, and the trainer's forecast for the clusters they could make, to rows: the cheapest run first. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from infra.choice.assumptions import Assumptions, device
from infra.offers.offer import Offer, order


class Need(BaseModel):
    """trainer/forecast.py says what it is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    strategy: dict[str, Any] | None
    reason: str
    peak: int | None
    host: int | None
    sent: int | None
    moved: int | None
    peak_flops: float | None


class Forecast(BaseModel):
    """What `python -m trainer forecast` answers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    experiment: str
    parameters: int
    steps: int
    tokens: int
    flops_per_token: float | None
    clusters: tuple[Need, ...]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One offer, so many times."""

    offer: Offer
    nodes: int
    regions: tuple[str, ...]
    """All that have it at this price."""

    def shape(self) -> dict[str, Any]:
        """For the forecast; candidates of one shape have one answer."""
        return {
            "nodes": self.nodes,
            "gpus": self.offer.gpu_count,
            "gpu_memory_gib": self.offer.gpu_memory_gib,
            "device": device(self.offer),
        }


@dataclass(frozen=True, kw_only=True)
class Row:
    candidate: Candidate
    strategy: dict[str, Any]
    """The recipe's section `strategy`."""
    peak_gib: float
    """On the GPU of the rank that holds most."""
    host_gib: float
    """Of each machine's own memory, for what is offloaded: whether it has so much isn't looked at."""
    hours: float
    usd: float | None
    """For the whole run; None: the price is unknown."""
    bound: Literal["computing", "network", "host memory"]
    """What the steps wait for."""


def candidates(offers: Iterable[Offer], *, nodes: Sequence[int], providers: Iterable[str]) -> list[Candidate]:
    """Of each machine and market the cheapest regions, so many times; what can't be made or predicted is left out."""
    cheapest: dict[tuple[str, str, str], list[Offer]] = {}
    for offer in sorted((each for each in offers if each.provider in set(providers)), key=order):
        if device(offer) is None or offer.gpu_memory_gib is None:
            continue
        same = cheapest.setdefault((offer.provider, offer.instance, offer.market), [])
        if not same or same[0].usd_per_hour == offer.usd_per_hour:
            same.append(offer)
    return [
        Candidate(offer=same[0], nodes=count, regions=tuple(each.region for each in same if each.region))
        for same in cheapest.values()
        for count in nodes
        if same[0].fewest_nodes <= count <= (same[0].most_nodes or count)
    ]


def shapes(found: Iterable[Candidate]) -> list[dict[str, Any]]:
    """The different ones, in the order in which the forecast is asked and answers."""
    return list({tuple(each.shape().items()): each.shape() for each in found}.values())


def rows(found: Sequence[Candidate], forecast: Forecast, assumed: Assumptions) -> list[Row]:
    """Those that can run, the cheapest run first, of equal price the quickest; unknown prices last."""
    asked = [tuple(shape.items()) for shape in shapes(found)]
    needs = dict(zip(asked, forecast.clusters, strict=True))
    made = [_row(each, needs[tuple(each.shape().items())], forecast, assumed) for each in found]
    return sorted(
        (row for row in made if row is not None), key=lambda row: (row.usd is None, row.usd or 0.0, row.hours)
    )


def _row(candidate: Candidate, need: Need, forecast: Forecast, assumed: Assumptions) -> Row | None:
    offer = candidate.offer
    if need.strategy is None or need.peak is None or need.peak_flops is None or forecast.flops_per_token is None:
        return None
    ranks = candidate.nodes * offer.gpu_count
    flops = forecast.flops_per_token * forecast.tokens / forecast.steps
    seconds: dict[Literal["computing", "network", "host memory"], float] = {
        "computing": flops / (ranks * need.peak_flops * assumed.mfu),
        "host memory": (need.moved or 0) / (assumed.host_gb_per_s * 1e9),
    }
    if candidate.nodes > 1:
        rate = assumed.network_gb_per_s(offer)
        if rate is None:
            return None
        seconds["network"] = (need.sent or 0) / (rate * 1e9)
    # What is sent overlaps with what is computed: the slower of them makes the step.
    bound = max(seconds, key=lambda each: seconds[each])
    hours = forecast.steps * seconds[bound] / 3600
    if offer.market == "spot":
        hours *= 1 + assumed.lost_hours / assumed.preempted_every_hours
    hours += assumed.start_hours
    usd = offer.usd_per_hour_of(candidate.nodes)
    return Row(
        candidate=candidate,
        strategy=need.strategy,
        peak_gib=need.peak / 2**30,
        host_gib=(need.host or 0) * offer.gpu_count / 2**30,
        hours=hours,
        usd=None if usd is None else usd * hours,
        bound=bound,
    )
