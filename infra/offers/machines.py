"""What this project's own tables know of a machine type of AWS and GCP: its GPUs, markets and network.

A type that isn't in them can't be made by this project, so its price is of no use here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from infra.gpus import MachineType
from infra.offers.offer import MARKETS, Market, Network, Offer

_GCP: Mapping[str, Network] = {"single": "Ethernet", "tcpx": "TCPX", "tcpxo": "TCPXO", "rdma": "RoCE"}


@dataclass(frozen=True, kw_only=True)
class Machine:
    provider: str
    told: MachineType
    network: Network
    markets: tuple[Market, ...]
    """Those that can be asked for."""

    def offer(self, *, region: str, market: Market, usd_per_hour: float | None, source: str, as_of: datetime) -> Offer:
        """One of it at that price; whether it can be had, neither a table nor a catalogue knows."""
        return Offer(
            provider=self.provider,
            instance=self.told.name,
            region=region,
            gpu_model=self.told.gpu_model,
            gpu_count=self.told.gpu_count,
            gpu_memory_gib=self.told.gpu_memory_gib,
            market=market,
            network=self.network,
            usd_per_hour=usd_per_hour,
            available=None,
            source=source,
            as_of=as_of,
        )


def _aws() -> dict[str, Machine]:
    from infra.providers.aws import instances

    return {
        name: Machine(
            provider="aws",
            told=told,
            network="EFA" if told.efa_max else "Ethernet",
            markets=MARKETS if told.spot else ("on-demand",),
        )
        for name, told in instances.all_types().items()
    }


def _gcp() -> dict[str, Machine]:
    from infra.providers.gcp import instances

    return {
        name: Machine(
            provider="gcp",
            told=told,
            network=_GCP[told.networking],
            markets=tuple(market for market in MARKETS if market in told.markets),
        )
        for name, told in instances.all_types().items()
    }


TABLES: Mapping[str, Callable[[], dict[str, Machine]]] = {"aws": _aws, "gcp": _gcp}
"""Provider to its types by name."""
