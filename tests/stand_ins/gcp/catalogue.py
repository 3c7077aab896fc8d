"""What this double of GCP has to offer before a test changes it: zones, machine types, images, quotas, prices.

The numbers of a machine are from SkyPilot's catalogue and the cluster toolkit, as in shared/facts/providers_big.md;
which zone offers what is made up, near enough to be plausible. Prices are made up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PROJECT = "trainstack-test"
PROJECT_NUMBER = "415104041262"

ZONES = {
    "us-central1": ("a", "b", "c", "f"),
    "us-east4": ("a", "b", "c"),
    "us-west1": ("a", "b", "c"),
    "europe-west4": ("a", "b", "c"),
    "asia-southeast1": ("a", "b", "c"),
}


def region_of(zone: str) -> str:
    return zone.rpartition("-")[0]


def all_zones() -> list[str]:
    return [f"{region}-{letter}" for region, letters in ZONES.items() for letter in letters]


@dataclass(frozen=True, kw_only=True)
class MachineType:
    name: str
    vcpus: int
    memory_gib: int
    gpu: str = ""
    """Accelerator type; "" for a machine without GPU."""
    gpus: int = 0
    nics: int = 8
    """The most network interfaces."""
    rdma: bool = False
    quota: str = ""
    """Metric of the on-demand GPUs: of the region, or "family/NVIDIA_H100"."""
    spot_quota: str = ""
    sold: frozenset[str] = frozenset({"STANDARD", "SPOT", "FLEX_START", "RESERVATION_BOUND"})

    @property
    def family(self) -> str:
        return self.name.partition("-")[0]


def _gpu(
    name: str,
    vcpus: int,
    memory_gib: int,
    gpu: str,
    gpus: int,
    quota: str,
    *,
    nics: int = 8,
    sells: Literal["all", "not on demand"] = "all",
) -> MachineType:
    spot = (
        f"PREEMPTIBLE_{quota}" if not quota.startswith("family/") else quota.replace("family/", "preemptible_family/")
    )
    if quota == "family/NVIDIA_H100":
        spot = "PREEMPTIBLE_NVIDIA_H100_GPUS"  # the one family of H100 and later with a metric of the region
    models = {"STANDARD", "SPOT", "FLEX_START", "RESERVATION_BOUND"} - ({"STANDARD"} if sells != "all" else set())
    return MachineType(
        name=name,
        vcpus=vcpus,
        memory_gib=memory_gib,
        gpu=gpu,
        gpus=gpus,
        nics=nics,
        rdma=name.startswith(("a3-ultra", "a4-")),
        quota=quota,
        spot_quota=spot,
        sold=frozenset(models),
    )


MACHINE_TYPES = {
    machine.name: machine
    for machine in (
        MachineType(name="e2-small", vcpus=2, memory_gib=2),
        MachineType(name="e2-medium", vcpus=2, memory_gib=4),
        MachineType(name="e2-standard-4", vcpus=4, memory_gib=16),
        MachineType(name="n1-standard-8", vcpus=8, memory_gib=30),
        MachineType(name="n2-standard-8", vcpus=8, memory_gib=32),
        MachineType(name="c3-standard-8", vcpus=8, memory_gib=32),
        _gpu("g2-standard-4", 4, 16, "nvidia-l4", 1, "NVIDIA_L4_GPUS"),
        _gpu("g2-standard-8", 8, 32, "nvidia-l4", 1, "NVIDIA_L4_GPUS"),
        _gpu("g2-standard-12", 12, 48, "nvidia-l4", 1, "NVIDIA_L4_GPUS"),
        _gpu("g2-standard-16", 16, 64, "nvidia-l4", 1, "NVIDIA_L4_GPUS"),
        _gpu("g2-standard-24", 24, 96, "nvidia-l4", 2, "NVIDIA_L4_GPUS"),
        _gpu("g2-standard-32", 32, 128, "nvidia-l4", 1, "NVIDIA_L4_GPUS"),
        _gpu("g2-standard-48", 48, 192, "nvidia-l4", 4, "NVIDIA_L4_GPUS"),
        _gpu("g2-standard-96", 96, 384, "nvidia-l4", 8, "NVIDIA_L4_GPUS"),
        _gpu("a2-highgpu-1g", 12, 85, "nvidia-tesla-a100", 1, "NVIDIA_A100_GPUS"),
        _gpu("a2-highgpu-2g", 24, 170, "nvidia-tesla-a100", 2, "NVIDIA_A100_GPUS"),
        _gpu("a2-highgpu-4g", 48, 340, "nvidia-tesla-a100", 4, "NVIDIA_A100_GPUS"),
        _gpu("a2-highgpu-8g", 96, 680, "nvidia-tesla-a100", 8, "NVIDIA_A100_GPUS"),
        _gpu("a2-megagpu-16g", 96, 1360, "nvidia-tesla-a100", 16, "NVIDIA_A100_GPUS"),
        _gpu("a2-ultragpu-1g", 12, 170, "nvidia-a100-80gb", 1, "NVIDIA_A100_80GB_GPUS"),
        _gpu("a2-ultragpu-2g", 24, 340, "nvidia-a100-80gb", 2, "NVIDIA_A100_80GB_GPUS"),
        _gpu("a2-ultragpu-4g", 48, 680, "nvidia-a100-80gb", 4, "NVIDIA_A100_80GB_GPUS"),
        _gpu("a2-ultragpu-8g", 96, 1360, "nvidia-a100-80gb", 8, "NVIDIA_A100_80GB_GPUS"),
        _gpu("a3-highgpu-1g", 26, 234, "nvidia-h100-80gb", 1, "family/NVIDIA_H100", sells="not on demand"),
        _gpu("a3-highgpu-2g", 52, 468, "nvidia-h100-80gb", 2, "family/NVIDIA_H100", sells="not on demand"),
        _gpu("a3-highgpu-4g", 104, 936, "nvidia-h100-80gb", 4, "family/NVIDIA_H100", sells="not on demand"),
        _gpu("a3-highgpu-8g", 208, 1872, "nvidia-h100-80gb", 8, "family/NVIDIA_H100", nics=5),
        _gpu("a3-megagpu-8g", 208, 1872, "nvidia-h100-mega-80gb", 8, "family/NVIDIA_H100_MEGA", nics=9),
        _gpu("a3-ultragpu-8g", 224, 2952, "nvidia-h200-141gb", 8, "family/NVIDIA_H200", nics=10, sells="not on demand"),
        _gpu("a4-highgpu-8g", 224, 3968, "nvidia-b200", 8, "family/NVIDIA_B200", nics=10, sells="not on demand"),
    )
}

# Machine types (by the start of the name) that not every zone has.
_ONLY_IN = {
    "a2-ultra": ("us-central1-a", "us-central1-c", "us-east4-c", "europe-west4-a", "asia-southeast1-c"),
    "a2-mega": ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "europe-west4-a"),
    "a2-high": ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "us-west1-b", "europe-west4-a"),
    "a3-high": ("us-central1-a", "us-central1-b", "us-central1-c", "us-east4-a", "us-west1-a", "europe-west4-b"),
    "a3-mega": ("us-central1-a", "us-central1-b", "us-central1-c", "us-east4-b", "europe-west4-b"),
    "a3-ultra": ("us-central1-b", "us-east4-b", "europe-west4-b"),
    "a4-high": ("us-central1-b", "us-east4-b"),
    "g2-": ("us-central1-a", "us-central1-b", "us-central1-c", "us-east4-a", "us-west1-a", "europe-west4-a"),
}


def zones_of(machine_type: str) -> list[str]:
    return next((list(zones) for start, zones in _ONLY_IN.items() if machine_type.startswith(start)), all_zones())


# (project, name, family, GiB, architecture)
IMAGES = (
    ("ubuntu-os-cloud", "ubuntu-2404-noble-amd64-v20261110", "ubuntu-2404-lts-amd64", 10, "X86_64"),
    ("ubuntu-os-cloud", "ubuntu-2204-jammy-v20261110", "ubuntu-2204-lts", 10, "X86_64"),
    ("debian-cloud", "debian-12-bookworm-v20261111", "debian-12", 10, "X86_64"),
    (
        "ubuntu-os-accelerator-images",
        "ubuntu-accelerator-2404-amd64-with-nvidia-580-v20260522",
        "ubuntu-accelerator-2404-amd64-with-nvidia-580",
        20,
        "X86_64",
    ),
    (
        "ubuntu-os-accelerator-images",
        "ubuntu-accelerator-2204-amd64-with-nvidia-570-v20260522",
        "ubuntu-accelerator-2204-amd64-with-nvidia-570",
        20,
        "X86_64",
    ),
    (
        "deeplearning-platform-release",
        "common-cu128-ubuntu-2204-nvidia-570-v20261101",
        "common-cu128-ubuntu-2204-nvidia-570",
        50,
        "X86_64",
    ),
    ("cos-cloud", "cos-105-17412-535-78", "cos-105-lts", 10, "X86_64"),
)

# Zones with a RoCE network profile.
ROCE_ZONES = ("us-central1-b", "us-east4-b", "europe-west4-b")

# Metrics of each region; a metric that isn't here can't be exceeded.
REGION_QUOTAS: dict[str, float] = {
    "CPUS": 2400,
    "PREEMPTIBLE_CPUS": 2400,
    "DISKS_TOTAL_GB": 40960,
    "SSD_TOTAL_GB": 40960,
    "IN_USE_ADDRESSES": 64,
    "STATIC_ADDRESSES": 16,
    "INSTANCES": 720,
    "NVIDIA_L4_GPUS": 64,
    "NVIDIA_A100_GPUS": 64,
    "NVIDIA_A100_80GB_GPUS": 64,
    "PREEMPTIBLE_NVIDIA_L4_GPUS": 64,
    "PREEMPTIBLE_NVIDIA_A100_GPUS": 64,
    "PREEMPTIBLE_NVIDIA_A100_80GB_GPUS": 64,
    "PREEMPTIBLE_NVIDIA_H100_GPUS": 64,
}
PROJECT_QUOTAS: dict[str, float] = {
    "NETWORKS": 50,
    "SUBNETWORKS": 1000,
    "FIREWALLS": 1000,
    "ROUTERS": 20,
    "GPUS_ALL_REGIONS": 512,
    "CPUS_ALL_REGIONS": 9600,
}
GPU_FAMILIES = ("NVIDIA_H100", "NVIDIA_H100_MEGA", "NVIDIA_H200", "NVIDIA_B200")
FAMILY_GPUS = 64.0

# Description, resource group, usage type, unit, USD per unit
SKUS = (
    ("Nvidia L4 GPU running in Americas", "GPU", "OnDemand", "h", 0.56),
    ("Nvidia L4 GPU attached to Spot Preemptible VMs running in Americas", "GPU", "Preemptible", "h", 0.22),
    ("G2 Instance Core running in Americas", "CPU", "OnDemand", "h", 0.025),
    ("G2 Instance Ram running in Americas", "RAM", "OnDemand", "GiBy.h", 0.003),
    ("Nvidia Tesla A100 GPU running in Americas", "GPU", "OnDemand", "h", 2.93),
    ("A2 Instance Core running in Americas", "CPU", "OnDemand", "h", 0.032),
    ("A2 Instance Ram running in Americas", "RAM", "OnDemand", "GiBy.h", 0.004),
    ("Nvidia H100 80GB GPU running in Americas", "GPU", "OnDemand", "h", 9.80),
    ("Nvidia H100 80GB GPU attached to Spot Preemptible VMs running in Americas", "GPU", "Preemptible", "h", 5.40),
    ("E2 Instance Core running in Americas", "CPU", "OnDemand", "h", 0.022),
    ("E2 Instance Ram running in Americas", "RAM", "OnDemand", "GiBy.h", 0.003),
    ("Balanced PD Capacity", "SSD", "OnDemand", "GiBy.mo", 0.10),
)
