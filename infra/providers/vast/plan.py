"""From the stack file to what is asked of Vast.ai: GPUs by its names, the search for offers, and their price. Pure.

An offer is a part of one machine of one host, at the host's own price. The defaults here (datacenters only, verified,
98 % reliable, a driver that our CUDA can use, a network that loads an environment in minutes) are no keys: a GPU that
is cheaper because it lacks one of them costs more than it saves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infra import checks, gpus
from infra.errors import SpecError
from infra.providers.vast.api import Offer

if TYPE_CHECKING:
    from infra.spec import ClusterSpec

KEYS = (
    *("provider", "nodes", "processes_per_node", "max_lifetime", "max_hourly_usd", "region", "gpus", "market"),
    *("image", "disk_gib"),
)
MODELS: dict[str, tuple[tuple[str, ...], float]] = {
    # As the other providers' tables call it: (Vast.ai's names, GiB of one GPU). SXM where there is a choice, so that
    # 8 GPUs have NVSwitch. From the names in Vast.ai's own client (vastai/data/query.py of 2026-08).
    "A10": (("A10",), 24),
    "A40": (("A40",), 48),
    "A100": (("A100 SXM4", "A100 SXM"), 40),
    "A100-80GB": (("A100 SXM4", "A100 SXM"), 80),
    "A100-PCIE": (("A100 PCIE",), 40),
    "A100-80GB-PCIE": (("A100 PCIE",), 80),
    "B200": (("B200",), 180),
    "H100": (("H100 SXM",), 80),
    "H100-NVL": (("H100 NVL",), 94),
    "H100-PCIE": (("H100 PCIE",), 80),
    "H200": (("H200",), 141),
    "H200-NVL": (("H200 NVL",), 141),
    "L4": (("L4",), 24),
    "L40": (("L40",), 48),
    "L40S": (("L40S",), 48),
    "RTX-3090": (("RTX 3090",), 24),
    "RTX-4090": (("RTX 4090",), 24),
    "RTX-5090": (("RTX 5090",), 32),
    "RTX-6000-ADA": (("RTX 6000Ada",), 48),
    "RTX-A6000": (("RTX A6000",), 48),
    "RTX-PRO-6000": (("RTX PRO 6000 S", "RTX PRO 6000 WS", "RTX PRO 6000"), 96),
    "T4": (("Tesla T4",), 16),
}
MOST_GPUS = 16
IMAGE = "vastai/base-image:@vastai-automatic-tag"
"""Vast.ai's own, which hosts have at hand; it picks the tag by the host's driver."""
LONGEST_LABEL = 256
DISK_GIB = 200
MOST_DISK_GIB = 16384
ANYWHERE = "anywhere"
VCPUS_PER_GPU = 4
RELIABILITY = 0.98
CUDA = 13.0
"""What the driver must be able to run: the environment's torch is built for CUDA 13."""
DOWN_MBIT, UP_MBIT = 300, 100
MARGIN = 1.2
"""A bid's distance to the lowest one that gets the machine now: the next bidder's first step doesn't take it away."""
MOST_BID_USD = 128.0
_HOURS_PER_MONTH = 720  # as Vast.ai's own storage_total_cost counts
_OFFERS = 64
_COUNTRY = re.compile(r"[A-Z]{2}")
_READY_S = 3600  # of an offer's time, beyond the lifetime, for the start and the end


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The GPUs of a node."""

    gpu_model: str
    gpu_count: int
    gpu_memory_gib: float
    names: tuple[str, ...]
    """Vast.ai's."""

    @property
    def name(self) -> str:
        return f"{self.gpu_count} × {self.gpu_model}"

    @property
    def vcpus(self) -> int:
        """At least: offers differ."""
        return VCPUS_PER_GPU * self.gpu_count


@dataclass(frozen=True, kw_only=True)
class Quote:
    """What an offer comes to, for all of its time."""

    offer: int
    bid_usd: float | None
    """What is bid for the machine, $ an hour; None on demand."""
    gpus_usd_per_hour: float
    disk_usd_per_hour: float
    down_usd_per_gb: float
    up_usd_per_gb: float
    place: str

    @property
    def usd_per_hour(self) -> float:
        return self.gpus_usd_per_hour + self.disk_usd_per_hour


def kind(spec: ClusterSpec) -> Kind:
    """Raises SpecError with everything that is wrong, a sentence a line; each begins with its key."""
    problems, found = [], None
    try:
        found = _kind(spec)
    except SpecError as error:
        problems.append(f"gpus: {error}")
    if spec.nodes > 1:
        problems.append(
            f"nodes is {spec.nodes}: write `nodes: 1`, because Vast.ai's API doesn't tell at what address its machines "
            "reach one another"
        )
    problems += checks.limits(spec, found, most_nodes=spec.nodes, provider="Vast.ai")
    if spec.market == "flex-start":
        problems.append("market is 'flex-start': Vast.ai has on-demand and spot (interruptible, by a bid)")
    if spec.region is not None and not _COUNTRY.fullmatch(spec.region):
        problems.append(f"region is {spec.region!r}: write a country as two capital letters (US), or remove the key")
    if spec.disk_gib is not None and not 8 <= spec.disk_gib <= MOST_DISK_GIB:
        problems.append(f"disk_gib is {spec.disk_gib}: take between 8 and {MOST_DISK_GIB}")
    if problems or found is None:
        raise SpecError("\n".join(problems))
    return found


def _kind(spec: ClusterSpec) -> Kind:
    if spec.gpus is None:
        raise SpecError("there are none: write the model and the number in the machine, as in `gpus: H100:8`")
    asked, count = gpus.parse(spec.gpus)
    model = asked.upper()
    if model not in MODELS:
        raise SpecError(f"no GPU of Vast.ai is {asked} here: take one of {', '.join(MODELS)}")
    if count > MOST_GPUS:
        raise SpecError(f"{spec.gpus} is more than the {MOST_GPUS} that one machine of Vast.ai has")
    names, gib = MODELS[model]
    return Kind(gpu_model=model, gpu_count=count, gpu_memory_gib=gib, names=names)


def wish(spec: ClusterSpec, found: Kind) -> dict[str, Any]:
    """What a machine is made from, wherever it is made: plain values for Pulumi's state."""
    return {
        "gpu_model": found.gpu_model,
        "gpu_count": found.gpu_count,
        "market": spec.market,
        "image": spec.image or IMAGE,
        "disk_gib": spec.disk_gib or DISK_GIB,
        "region": spec.region or ANYWHERE,
    }


def query(wanted: Mapping[str, Any], *, lifetime_s: int) -> dict[str, Any]:
    """The search's body for a `wish`."""
    names, gib = MODELS[wanted["gpu_model"]]
    count, disk = int(wanted["gpu_count"]), int(wanted["disk_gib"])
    found: dict[str, Any] = {
        "type": "bid" if wanted["market"] == "spot" else "ondemand",
        "limit": _OFFERS,
        "order": [["dph_total", "asc"]],
        "allocated_storage": disk,
        "verified": {"eq": True},
        "rentable": {"eq": True},
        "rented": {"eq": False},
        "external": {"eq": False},
        "datacenter": {"eq": True},
        "cpu_arch": {"eq": "amd64"},
        "gpu_name": {"in": list(names)},
        "num_gpus": {"eq": count},
        # In MB, and what the driver leaves of the makers' GB: A100s of 40 and 80 have one name.
        "gpu_ram": {"gte": gib * 900, "lte": gib * 1100},
        "cpu_cores_effective": {"gte": VCPUS_PER_GPU * count},
        "reliability": {"gte": RELIABILITY},
        "direct_port_count": {"gte": 1},
        "disk_space": {"gte": disk},
        "duration": {"gte": lifetime_s + _READY_S},
        "cuda_max_good": {"gte": CUDA},
        "inet_down": {"gte": DOWN_MBIT},
        "inet_up": {"gte": UP_MBIT},
    }
    if wanted["region"] != ANYWHERE:
        found["geolocation"] = {"in": [wanted["region"]]}
    return found


def quotes(offers: Iterable[Offer], wanted: Mapping[str, Any]) -> list[Quote]:
    """The cheapest first, disk included. What isn't what was searched for isn't taken."""
    names, count = MODELS[wanted["gpu_model"]][0], int(wanted["gpu_count"])
    found = [_quote(each, wanted) for each in offers if each.gpu_name in names and each.num_gpus == count]
    return sorted((each for each in found if each is not None), key=lambda each: (each.usd_per_hour, each.offer))


def _quote(offer: Offer, wanted: Mapping[str, Any]) -> Quote | None:
    bid = None
    if wanted["market"] == "spot":
        if not offer.min_bid or offer.min_bid * MARGIN > MOST_BID_USD:
            return None
        bid = round(offer.min_bid * MARGIN, 4)
    return Quote(
        offer=offer.id,
        bid_usd=bid,
        gpus_usd_per_hour=offer.dph_base if bid is None else bid,
        disk_usd_per_hour=int(wanted["disk_gib"]) * offer.storage_cost / _HOURS_PER_MONTH,
        down_usd_per_gb=offer.inet_down_cost or 0.0,
        up_usd_per_gb=offer.inet_up_cost or 0.0,
        place=offer.geolocation or "a place that isn't told",
    )


def no_offer(wanted: Mapping[str, Any]) -> str:
    """One sentence."""
    where = "" if wanted["region"] == ANYWHERE else f" in {wanted['region']}"
    market = "interruptible" if wanted["market"] == "spot" else "on-demand"
    machine = f"{int(wanted['gpu_count'])} × {wanted['gpu_model']} with {int(wanted['disk_gib'])} GiB of disk"
    return (
        f"Vast.ai has no {market} offer of {machine}{where} from a verified datacenter for so long now: try later, "
        "with a shorter max_lifetime, a smaller disk, or other GPUs (cloud.vast.ai/create shows what is there)"
    )
