"""GCP's GPU machine types: GPUs, sizes, and which kind of GPU network each one needs.

The figures are in `instances.json`; each type says there where they are from and which of them nobody has checked. What
a zone offers is asked live.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from infra import gpus as choice

TABLE = Path(__file__).with_name("instances.json")

Market = Literal["on-demand", "spot", "flex-start"]


@dataclass(frozen=True, kw_only=True)
class InstanceType:
    name: str
    gpu_model: str
    """"H100"; the A100 with 80 GiB is "A100-80GB"."""
    gpu_count: int
    gpu_memory_gib: int
    """Of one GPU."""
    vcpus: int
    memory_gib: int
    network_gbps: int
    accelerator_type: str
    """GCP's name of the GPU. It comes with the machine type: guest_accelerators stays unset."""
    networking: Literal["single", "tcpx", "tcpxo", "rdma"]
    """How GPUs of different nodes talk: over the one interface, GPUDirect-TCPX or -TCPXO, or RDMA (RoCE)."""
    extra_networks: int
    """VPC networks besides the main one: tcpx 4, tcpxo 8 (one interface each); rdma 2 (a second host network, and one
    with a RoCE profile whose 8 subnets take an RDMA interface each)."""
    markets: tuple[Market, ...]
    local_ssd_count: int
    """Disks of 375 GiB that come with the machine."""
    boot_disk_type: Literal["pd-balanced", "hyperdisk-balanced"]
    quota_on_demand: str
    """A metric of the region, or "gpus_per_gpu_family/FAMILY" of the Cloud Quotas API. The unit is GPUs."""
    quota_spot: str
    """The same for spot and flex-start."""
    source: str


@functools.cache
def all_types() -> dict[str, InstanceType]:
    rows = json.loads(TABLE.read_text(encoding="utf-8"))["types"]
    return TypeAdapter(dict[str, InstanceType]).validate_python(
        {name: {"name": name, **row} for name, row in rows.items()}
    )


def by_name(name: str) -> InstanceType:
    """Raises SpecError with the nearest names."""
    return choice.by_name(name, all_types(), provider="GCP")
