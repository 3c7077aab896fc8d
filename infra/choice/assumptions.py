"""What nobody can know of a run beforehand, as figures that are shown beside the answer and may be overridden."""

from __future__ import annotations

from dataclasses import dataclass

from infra.offers.offer import Network, Offer

# As CUDA names them: trainer/metrics/hardware.py knows their peak FLOP/s. A model that isn't here can't be predicted.
DEVICES = {
    "A10": "NVIDIA A10",
    "A10G": "NVIDIA A10G",
    "A40": "NVIDIA A40",
    "A100": "NVIDIA A100-SXM4-40GB",
    "A100-80GB": "NVIDIA A100-SXM4-80GB",
    "B200": "NVIDIA B200",
    "H100": "NVIDIA H100 80GB HBM3",
    "H100-NVL": "NVIDIA H100 NVL",
    "H100-PCIE": "NVIDIA H100 PCIe",
    "H200": "NVIDIA H200",
    "L4": "NVIDIA L4",
    "L40": "NVIDIA L40",
    "L40S": "NVIDIA L40S",
    "RTX-3090": "NVIDIA GeForce RTX 3090",
    "RTX-4090": "NVIDIA GeForce RTX 4090",
    "RTX-A6000": "NVIDIA RTX A6000",
}
_PCIE = ("pcie",)

# Gbit/s of a whole machine with 8 GPUs, by the providers' own pages: AWS p5 3200 and p4d 400, CoreWeave 8 × 400, GCP
# a3-high about 800, a3-mega 1800, a3-ultra 3200, RunPod's clusters 1600 (A100) to 3200. Ethernet is a guess: Lambda
# tells nothing, and g5, g2 and the like have 10 to 100.
_GBIT_PER_GPU: dict[Network, float] = {
    "InfiniBand": 400.0,
    "EFA": 400.0,
    "TCPX": 100.0,
    "TCPXO": 225.0,
    "RoCE": 400.0,
    "overlay": 200.0,
    "Ethernet": 10.0,
}
_OLD = ("A100", "A100-80GB", "A10G", "A10", "L4", "L40", "L40S")
_GBIT_PER_OLD_GPU = 50.0
"""Of EFA on machines with A100 and older (p4d: 400 Gbit/s for eight)."""


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    mfu: float = 0.35
    """Share of the GPUs' peak that the model's own arithmetic gets (Chowdhery et al. 2022 report 0.21 to 0.46)."""
    gbit_per_gpu: float | None = None
    """Line rate between machines, of each GPU; None: by the kind of network."""
    network_share: float = 0.7
    """Of the line rate that a ring of all GPUs gets."""
    host_gb_per_s: float = 20.0
    """Between a GPU and host memory (PCIe 4.0 × 16: 32 in theory)."""
    start_hours: float = 0.5
    """Machines that boot and get their environment are paid for."""
    preempted_every_hours: float = 12.0
    """How often a gang of spot machines is taken away."""
    lost_hours: float = 0.75
    """For each time: a new start, and the work since the last checkpoint."""

    def network_gb_per_s(self, offer: Offer) -> float | None:
        """Of one GPU to other machines; None when nothing is known or there is no network."""
        gbit = self.gbit_per_gpu
        if gbit is None:
            gbit = _GBIT_PER_GPU.get(offer.network)
            if offer.network == "EFA" and offer.gpu_model in _OLD:
                gbit = _GBIT_PER_OLD_GPU
        return None if gbit is None or offer.network == "none" else gbit / 8 * self.network_share

    def __str__(self) -> str:
        rate = "by the kind of network" if self.gbit_per_gpu is None else f"{self.gbit_per_gpu:g} Gbit/s"
        return (
            f"MFU {self.mfu:g}; between machines {rate} a GPU, {self.network_share:.0%} of it got; "
            f"{self.host_gb_per_s:g} GB/s to host memory; {self.start_hours:g} h to start; spot taken away every "
            f"{self.preempted_every_hours:g} h, which costs {self.lost_hours:g} h"
        )


def device(offer: Offer) -> str | None:
    """As CUDA names the offer's GPU; None when its speed isn't known."""
    if offer.gpu_model == "H100" and any(word in offer.instance.lower() for word in _PCIE):
        return DEVICES["H100-PCIE"]
    return DEVICES.get(offer.gpu_model.upper())
