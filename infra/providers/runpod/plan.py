"""From the stack file to what is asked of RunPod: GPUs by its names, pod or cluster, and where. Pure.

Only RunPod's own data centers ("secure cloud") are asked: elsewhere there is no network between nodes, and strangers
own the machine that has the stack's host key. That is no key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infra import checks, gpus
from infra.errors import SpecError
from infra.providers.runpod.api import GpuType, Product

if TYPE_CHECKING:
    from infra.spec import ClusterSpec

KEYS = (
    *("provider", "nodes", "processes_per_node", "max_lifetime", "max_hourly_usd", "region", "gpus", "market"),
    *("image", "disk_gib", "storage"),
)
MODELS: dict[str, tuple[str, float]] = {
    # As the other providers' tables call it: (RunPod's id, GiB of one GPU). From RunPod's list of GPU types, 2026-02.
    "A30": ("NVIDIA A30", 24),
    "A40": ("NVIDIA A40", 48),
    "A100-80GB": ("NVIDIA A100-SXM4-80GB", 80),
    "A100-80GB-PCIE": ("NVIDIA A100 80GB PCIe", 80),
    "B200": ("NVIDIA B200", 180),
    "B300": ("NVIDIA B300 SXM6 AC", 288),
    "H100": ("NVIDIA H100 80GB HBM3", 80),
    "H100-NVL": ("NVIDIA H100 NVL", 94),
    "H100-PCIE": ("NVIDIA H100 PCIe", 80),
    "H200": ("NVIDIA H200", 141),
    "H200-NVL": ("NVIDIA H200 NVL", 143),
    "L4": ("NVIDIA L4", 24),
    "L40": ("NVIDIA L40", 48),
    "L40S": ("NVIDIA L40S", 48),
    "RTX-3090": ("NVIDIA GeForce RTX 3090", 24),
    "RTX-4090": ("NVIDIA GeForce RTX 4090", 24),
    "RTX-5090": ("NVIDIA GeForce RTX 5090", 32),
    "RTX-6000-ADA": ("NVIDIA RTX 6000 Ada Generation", 48),
    "RTX-A4000": ("NVIDIA RTX A4000", 16),
    "RTX-A5000": ("NVIDIA RTX A5000", 24),
    "RTX-A6000": ("NVIDIA RTX A6000", 48),
    "RTX-PRO-6000": ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 96),
}
IMAGE = "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404"
"""RunPod's own, which its hosts have at hand."""
LONGEST_LABEL = 191
"""As the older API's description limits a name; version 2 tells no limit."""
DISK_GIB = 200
MOST_DISK_GIB = 16384
LEAST_VOLUME_GB, MOST_VOLUME_GB = 10, 4096
MOST_NODES = 8
"""Of an Instant Cluster, without a contract."""
ANYWHERE = "anywhere"
CUDA = "13.0"
"""What the host's driver must be able to run: the environment's torch is built for CUDA 13."""
SHARED_PATH = "/mnt/shared"
"""Where the network volume is mounted on each node."""
INTERFACE = "ens1"
"""A cluster's first network interface; eth0 has the way out only."""
_VCPUS_PER_GPU = 4
_REGION = re.compile(r"[A-Z]{2,3}(-[A-Z]{2,4}(-\d+)?)?")
_DATA_CENTER = re.compile(r"[A-Z]{2,3}-[A-Z]{2,4}-\d+")
_STOCKED = ("HIGH", "MEDIUM", "LOW")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The GPUs of a node."""

    gpu_model: str
    gpu_count: int
    gpu_memory_gib: float
    id: str
    """RunPod's."""

    @property
    def name(self) -> str:
        return f"{self.gpu_count} × {self.gpu_model}"

    @property
    def vcpus(self) -> int:
        """At least: hosts differ, and the API takes no wish."""
        return _VCPUS_PER_GPU * self.gpu_count


def kind(spec: ClusterSpec) -> Kind:
    """Raises SpecError with everything that is wrong, a sentence a line; each begins with its key."""
    problems, found = [], None
    try:
        found = _kind(spec)
    except SpecError as error:
        problems.append(f"gpus: {error}")
    problems += checks.limits(spec, found, most_nodes=MOST_NODES, provider="RunPod")
    if spec.market != "on-demand":
        problems.append(
            f"market is {spec.market!r}: write `market: on-demand` or remove the key, because RunPod's API has no "
            "interruptible pods any more (version 2, since 2026-11)"
        )
    if spec.region is not None and not _REGION.fullmatch(spec.region):
        problems.append(
            f"region is {spec.region!r}: write a data center of RunPod's or the beginning of its name, in capital "
            "letters (US, EU-RO, US-KS-2), or remove the key"
        )
    if spec.disk_gib is not None and not 10 <= spec.disk_gib <= MOST_DISK_GIB:
        problems.append(f"disk_gib is {spec.disk_gib}: take between 10 and {MOST_DISK_GIB}")
    problems += _storage(spec)
    if problems or found is None:
        raise SpecError("\n".join(problems))
    return found


def _kind(spec: ClusterSpec) -> Kind:
    if spec.gpus is None:
        raise SpecError("there are none: write the model and the number in each node, as in `gpus: H100:8`")
    asked, count = gpus.parse(spec.gpus)
    model = asked.upper()
    if model not in MODELS:
        raise SpecError(f"no GPU of RunPod is {asked} here: take one of {', '.join(MODELS)}")
    id_, gib = MODELS[model]
    return Kind(gpu_model=model, gpu_count=count, gpu_memory_gib=gib, id=id_)


def _storage(spec: ClusterSpec) -> list[str]:
    if spec.storage is None:
        return []
    found = []
    size = spec.storage.size_gib
    if spec.storage.kind != "nfs":
        found.append(f"storage.kind is {spec.storage.kind!r}: RunPod has network volumes alone, write `kind: nfs`")
    if size is None or not LEAST_VOLUME_GB <= size <= MOST_VOLUME_GB:
        found.append(f"storage.size_gib is {size}: take between {LEAST_VOLUME_GB} and {MOST_VOLUME_GB}")
    if spec.region is None or not _DATA_CENTER.fullmatch(spec.region):
        found.append(
            f"region is {spec.region!r} beside a network volume, which lies in one data center: write its whole name "
            "(US-KS-2)"
        )
    return found


def wish(spec: ClusterSpec, found: Kind) -> dict[str, Any]:
    """What the machines are made from, wherever they are made: plain values for Pulumi's state."""
    return {
        "gpu_model": found.gpu_model,
        "gpu_count": found.gpu_count,
        # A cluster can't grow or shrink for us: another number is another cluster, and the preview shows that.
        "nodes": spec.nodes,
        "image": spec.image or IMAGE,
        "disk_gib": spec.disk_gib or DISK_GIB,
    }


def product(wanted: Mapping[str, Any]) -> Product:
    return "POD" if int(wanted["nodes"]) == 1 else "CLUSTER"


def what(wanted: Mapping[str, Any]) -> str:
    """ "8 × H100", "2 × 8 × H100"."""
    machine, nodes = f"{int(wanted['gpu_count'])} × {wanted['gpu_model']}", int(wanted["nodes"])
    return machine if nodes == 1 else f"{nodes} × {machine}"


def offered(types: Iterable[GpuType], wanted: Mapping[str, Any]) -> GpuType | None:
    """The type of this wish, where RunPod's own data centers have it at all."""
    id_ = MODELS[wanted["gpu_model"]][0]
    return next((each for each in types if each.id == id_ and each.secure), None)


def data_centers(gpu: GpuType | None, region: str) -> list[str]:
    """Those of the region that have what was asked for, the best stocked first."""
    if gpu is None:
        return []
    there = [each for each in gpu.dataCenters if each.availability in _STOCKED and is_in(each.id, region)]
    return [each.id for each in sorted(there, key=lambda each: _STOCKED.index(each.availability))]


def is_in(data_center: str, region: str) -> bool:
    return region in (ANYWHERE, data_center) or data_center.startswith(f"{region}-")


def no_capacity(wanted: Mapping[str, Any], region: str) -> str:
    """One sentence."""
    where = "" if region == ANYWHERE else f" in {region}"
    product_ = "a pod" if product(wanted) == "POD" else "an Instant Cluster"
    return (
        f"RunPod has no {what(wanted)} for {product_}{where} now: try later, another region, or other GPUs "
        "(console.runpod.io/deploy shows what is there)"
    )
