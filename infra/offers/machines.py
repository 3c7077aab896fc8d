"""What this project's own tables know of a machine type of AWS and GCP: its GPUs, markets and network.

A type that isn't in them can't be made by this project, so its price is of no use here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from infra.offers.offer import MARKETS, Market, Network

_GCP: Mapping[str, Network] = {"single": "Ethernet", "tcpx": "TCPX", "tcpxo": "TCPXO", "rdma": "RoCE"}


@dataclass(frozen=True, kw_only=True)
class Machine:
    gpu_model: str
    gpu_count: int
    gpu_memory_gib: float
    network: Network
    markets: tuple[Market, ...]
    """Those that can be asked for."""


def _aws() -> dict[str, Machine]:
    from infra.providers.aws import instances

    return {
        name: Machine(
            gpu_model=told.gpu_model,
            gpu_count=told.gpu_count,
            gpu_memory_gib=told.gpu_memory_gib,
            network="EFA" if told.efa_max else "Ethernet",
            markets=MARKETS if told.spot else ("on-demand",),
        )
        for name, told in instances.all_types().items()
    }


def _gcp() -> dict[str, Machine]:
    from infra.providers.gcp import instances

    return {
        name: Machine(
            gpu_model=told.gpu_model,
            gpu_count=told.gpu_count,
            gpu_memory_gib=told.gpu_memory_gib,
            network=_GCP[told.networking],
            markets=tuple(market for market in MARKETS if market in told.markets),
        )
        for name, told in instances.all_types().items()
    }


TABLES: Mapping[str, Callable[[], dict[str, Machine]]] = {"aws": _aws, "gcp": _gcp}
