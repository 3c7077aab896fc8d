"""Offers by the library gpuhunt: its published catalogue of AWS, GCP, Lambda and RunPod, and Vast.ai's market.

gpuhunt waits without a limit and logs instead of raising: so this runs in a process of its own (asking.py). Where it
looks for the catalogue, GPUHUNT_CATALOG_URL may say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime

import gpuhunt
import requests

from infra import prices
from infra.errors import ProviderError
from infra.offers.machines import TABLES
from infra.offers.offer import Market, Network, Offer
from infra.offers.sources import Answer
from infra.offers.wish import Wish

DISK_GIB = 100
"""Vast.ai charges the disk with the machine: its price here has so much."""
_VERSION = re.compile(r"(\d{4})(\d{2})(\d{2})(\D.*)?")
_CLUSTER, _ARM = "runpod-cluster", gpuhunt.CPUArchitecture.ARM
Rows = Iterable[gpuhunt.CatalogItem]


def catalogue(_wish: Wish) -> Answer:
    """All offers of machines that this project can make, as gpuhunt published them last. Raises ProviderError."""
    loaded = gpuhunt.Catalog(auto_reload=False)
    try:
        loaded.load()
    except gpuhunt.GPUHuntError as error:
        raise ProviderError(f"gpuhunt's catalogue can't be loaded ({_cause(error)}): look at the network") from None
    offers: list[Offer] = []
    problems: dict[str, str] = {}
    for provider, (theirs, read) in _READERS.items():
        told = loaded.catalog.get(theirs)
        if told is None:
            problems[provider] = f"gpuhunt's catalogue of {theirs} can't be loaded: look at the network"
            continue
        match = _VERSION.fullmatch(told.version)
        if match is None:
            problems[provider] = f"gpuhunt's catalogue of {theirs} has version {told.version!r}, which is no date"
            continue
        as_of = prices.start_of(date(int(match[1]), int(match[2]), int(match[3])))
        found = list(read(told.items, as_of))
        offers += found
        if not found:
            problems[provider] = f"gpuhunt's catalogue of {theirs} has no machine that this project can make"
    return Answer(offers=tuple(offers), problems=problems)


def vast(wish: Wish) -> Answer:
    """What is free on Vast.ai now: each offer is one machine, so for one node only. Raises ProviderError."""
    if wish.nodes > 1:
        raise ProviderError("gpuhunt doesn't tell which of Vast.ai's machines share a network")
    from gpuhunt.providers.vastai import VastAIProvider

    market = gpuhunt.Catalog(auto_reload=False)
    market.add_provider(VastAIProvider.from_env())
    try:
        items = market.query(
            provider="vastai",
            gpu_vendor=gpuhunt.AcceleratorVendor.NVIDIA,
            gpu_name=None if wish.gpu is None else _their_names(wish.gpu),
            min_gpu_count=wish.count or 1,
            max_gpu_count=wish.count,
            min_disk_size=DISK_GIB,
        )
    except (requests.RequestException, KeyError, TypeError, ValueError) as error:
        raise ProviderError(f"Vast.ai's offers can't be had ({_cause(error)}): look at the network") from None
    now = datetime.now(UTC)
    source = f"Vast.ai's market through gpuhunt, with {DISK_GIB} GB of disk"
    return Answer(
        offers=tuple(
            _offer("vast", item, source, now, network="unknown", available=True, most_nodes=1) for item in items
        )
    )


def _of_table(provider: str, rows: Rows, as_of: datetime, *, source: str) -> Iterable[Offer]:
    """Machines of our own tables, whose GPUs and network they tell better."""
    table = TABLES[provider]()
    for item in rows:
        machine = table.get(item.instance_name)
        market: Market = "spot" if item.spot else "on-demand"
        if machine is None or market not in machine.markets:
            continue
        usd = item.price if item.price > 0 else None
        yield machine.offer(region=item.location, market=market, usd_per_hour=usd, source=source, as_of=as_of)


def _aws(rows: Rows, as_of: datetime) -> Iterable[Offer]:
    source = "gpuhunt's catalogue of AWS (spot: the cheapest zone)"
    return _of_table("aws", rows, as_of, source=source)


def _gcp(rows: Rows, as_of: datetime) -> Iterable[Offer]:
    source = "gpuhunt's catalogue of GCP, with the local SSDs that come with a machine"
    return _of_table("gcp", rows, as_of, source=source)


def _lambda(rows: Rows, as_of: datetime) -> Iterable[Offer]:
    """It lists every region, with capacity or without: so nothing is known of that."""
    source = "gpuhunt's catalogue of Lambda"
    x86 = (item for item in rows if item.cpu_arch != _ARM and item.gpu_count)
    return (_offer("lambda", item, source, as_of, network="Ethernet") for item in x86)


def _runpod(rows: Rows, as_of: datetime) -> Iterable[Offer]:
    """Clusters of pods, and single pods, which have no network between them that could carry gradients."""
    gpus = (item for item in rows if item.gpu_count and item.gpu_vendor == gpuhunt.AcceleratorVendor.NVIDIA)
    return _cheaper_than_on_demand(
        _cluster(item, as_of) if _CLUSTER in item.flags else _pod(item, as_of) for item in gpus
    )


def _pod(item: gpuhunt.CatalogItem, as_of: datetime) -> Offer:
    return _offer("runpod", item, "gpuhunt's catalogue of RunPod: pods", as_of, network="none", most_nodes=1)


def _cluster(item: gpuhunt.CatalogItem, as_of: datetime) -> Offer:
    """The price is one pod's, as everywhere; a cluster whose sizes aren't told is one of two pods or more."""
    sizes = item.provider_data.get("pod_counts") or []
    return _offer(
        "runpod",
        item,
        "gpuhunt's catalogue of RunPod: clusters",
        as_of,
        network="overlay",
        fewest_nodes=min(sizes, default=2),
        most_nodes=max(sizes, default=None),
    )


def _cheaper_than_on_demand(offers: Iterable[Offer]) -> list[Offer]:
    """Without spot at exactly the on-demand price of the same pod and place: there is no such market then.

    RunPod gave up interruptible pods in 2026, and catalogues went on with a copy of the price.
    """
    offers = list(offers)
    listed = {(e.instance, e.region, e.gpu_count, e.usd_per_hour) for e in offers if e.market == "on-demand"}
    return [
        each
        for each in offers
        if each.market == "on-demand" or (each.instance, each.region, each.gpu_count, each.usd_per_hour) not in listed
    ]


_READERS: Mapping[str, tuple[str, Callable[[Rows, datetime], Iterable[Offer]]]] = {
    "aws": ("aws", _aws),
    "gcp": ("gcp", _gcp),
    "lambda": ("lambdalabs", _lambda),
    "runpod": ("runpod", _runpod),
}


def _offer(
    provider: str,
    item: gpuhunt.CatalogItem,
    source: str,
    as_of: datetime,
    *,
    network: Network,
    available: bool | None = None,
    fewest_nodes: int = 1,
    most_nodes: int | None = None,
) -> Offer:
    model = item.gpu_name or "unknown"
    return Offer(
        provider=provider,
        instance=item.instance_name,
        region=item.location or None,
        gpu_model="A100-80GB" if (model, item.gpu_memory) == ("A100", 80.0) else model,
        gpu_count=item.gpu_count,
        gpu_memory_gib=item.gpu_memory,
        market="spot" if item.spot else "on-demand",
        network=network,
        usd_per_hour=item.price if item.price > 0 else None,
        available=available,
        source=source,
        as_of=as_of,
        fewest_nodes=fewest_nodes,
        most_nodes=most_nodes,
    )


def _their_names(model: str) -> list[str]:
    """gpuhunt's names of the GPUs that a user calls `model`: it has one A100, and no dashes."""
    plain = re.sub(r"[^A-Za-z0-9]", "", model)
    known = {gpu.name for gpu in gpuhunt.KNOWN_NVIDIA_GPUS}
    name = "A100" if plain.upper() == "A10080GB" else plain
    return [next((each for each in known if each.casefold() == name.casefold()), name)]


def _cause(error: BaseException) -> str:
    """The innermost reason, in one line."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
