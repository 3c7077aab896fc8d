"""What it costs: GPUs by RunPod's catalogue (of a cluster: by its GraphQL API), disks and volumes by its price page."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from infra.cost import HOURS_PER_MONTH, Line
from infra.errors import ProviderError
from infra.providers.runpod import plan
from infra.providers.runpod.api import GpuType, RunPod

if TYPE_CHECKING:
    from infra.spec import ClusterSpec

# docs.runpod.io/pods/pricing of 2026-08: $ a GB and month. Traffic is free.
_DISK_USD, _VOLUME_USD, _VOLUME_USD_BEYOND, _BEYOND_GB = 0.10, 0.07, 0.05, 1000
_PAGE = "RunPod's price page"
_PAGE_AS_OF = datetime(2026, 8, 20, tzinfo=UTC)
_NETWORK = "and what RunPod bills for the network between the nodes, of which its API tells no price"


def lines(spec: ClusterSpec, client: RunPod, *, now: datetime) -> list[Line]:
    """A cluster bills on when its guard has fired: no pod of it can end it."""
    kind = plan.kind(spec)
    wanted = plan.wish(spec, kind)
    gpu = plan.offered(client.gpus(plan.product(wanted), kind.gpu_count), wanted)
    is_pod = plan.product(wanted) == "POD"
    source = "RunPod's catalogue"
    try:
        usd = machines_usd_per_hour(client, wanted, gpu)
        if usd is None:
            source = f"{source} has none of it in its own data centers" if is_pod else "RunPod tells none for clusters"
        elif not is_pod:
            source = "RunPod's GraphQL API"
    except ProviderError as error:
        usd, source = None, str(error)
    found = [
        Line(
            what=f"{plan.what(wanted)} {'on demand' if is_pod else 'as an Instant Cluster'}",
            usd_per_hour=usd,
            source=source,
            as_of=now,
            outlives_guard=not is_pod,
            per_use="" if is_pod else _NETWORK,
        ),
        Line(
            what=f"{spec.nodes} × {wanted['disk_gib']} GiB of disk",
            usd_per_hour=disk_usd_per_hour(wanted),
            source=_PAGE,
            as_of=_PAGE_AS_OF,
            outlives_guard=not is_pod,
        ),
    ]
    if spec.storage is not None and spec.storage.size_gib is not None:
        found.append(
            Line(
                what=f"network volume of {spec.storage.size_gib} GB",
                usd_per_hour=volume_usd_per_hour(spec.storage.size_gib),
                source=_PAGE,
                as_of=_PAGE_AS_OF,
                outlives_guard=True,
            )
        )
    return found


def machines_usd_per_hour(client: RunPod, wanted: Mapping[str, Any], gpu: GpuType | None) -> float | None:
    """Of all nodes, without disks; None where RunPod tells none. `gpu`: plan.offered. Raises ProviderError."""
    if plan.product(wanted) == "POD":
        one = gpu.price.secure or None if gpu is not None else None
    else:
        one = client.cluster_rate(plan.MODELS[wanted["gpu_model"]][0])
    return None if one is None else one * int(wanted["gpu_count"]) * int(wanted["nodes"])


def disk_usd_per_hour(wanted: Mapping[str, Any]) -> float:
    """Of all nodes, while they run."""
    return int(wanted["nodes"]) * int(wanted["disk_gib"]) * _DISK_USD / HOURS_PER_MONTH


def volume_usd_per_hour(size_gb: int) -> float:
    first, rest = min(size_gb, _BEYOND_GB), max(0, size_gb - _BEYOND_GB)
    return (first * _VOLUME_USD + rest * _VOLUME_USD_BEYOND) / HOURS_PER_MONTH
