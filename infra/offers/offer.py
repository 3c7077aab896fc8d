"""One machine with GPUs at one price: the row of `fab prices`. Unknown is None, never 0."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, get_args

from pydantic import TypeAdapter

Market = Literal["on-demand", "spot"]
MARKETS: tuple[Market, ...] = get_args(Market)
Network = Literal["InfiniBand", "EFA", "TCPX", "TCPXO", "RoCE", "overlay", "Ethernet", "none", "unknown"]
"""What GPUs of several machines talk over. "none": no private network at all; "overlay": the provider's own."""

STALE_AFTER = timedelta(days=30)
"""Spot prices change daily, and a list price that nobody looked at for a month may be another one."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    provider: str
    """As in a stack file: "aws", "lambda"."""
    instance: str
    """The provider's own name of the machine."""
    region: str | None
    """None: the provider or the source doesn't tell one."""
    gpu_model: str
    """As in a stack file: "H100"; the A100 with 80 GB is "A100-80GB"."""
    gpu_count: int
    """In one machine."""
    gpu_memory_gib: float | None
    """Of one GPU, as the source tells it: some say GB and mean the makers'."""
    market: Market
    network: Network
    usd_per_hour: float | None
    """Of one machine, without disks, addresses and traffic unless `source` says otherwise."""
    available: bool | None
    """Whether it can be had now; only a provider's live answer is a yes or a no."""
    source: str
    as_of: datetime
    """When the figure was true; the start of the day where only that is known. UTC."""
    fewest_nodes: int = 1
    most_nodes: int | None = None

    def __post_init__(self) -> None:
        if self.usd_per_hour is not None and self.usd_per_hour <= 0:
            raise ValueError(f"{self.instance} of {self.provider} for ${self.usd_per_hour}: an unknown price is None")

    @property
    def usd_per_gpu_hour(self) -> float | None:
        return None if self.usd_per_hour is None else self.usd_per_hour / self.gpu_count

    def usd_per_hour_of(self, nodes: int) -> float | None:
        return None if self.usd_per_hour is None else self.usd_per_hour * nodes

    def age_days(self, now: datetime) -> int:
        return max(0, (now - self.as_of).days)

    def is_stale(self, now: datetime) -> bool:
        return now - self.as_of > STALE_AFTER


OFFERS: TypeAdapter[tuple[Offer, ...]] = TypeAdapter(tuple[Offer, ...])


def order(offer: Offer) -> tuple[object, ...]:
    """Cheapest GPU first, unknown prices last; then so that the same question has the same answer."""
    each = offer.usd_per_gpu_hour
    return (each is None, each or 0.0, offer.provider, offer.instance, offer.market, offer.region or "")
