"""Dense peak FLOP/s by device name, and memory. What isn't known is None: no utilisation is better than a wrong one."""

import re
import resource
import sys

import torch

from trainer.distributed import Processes
from trainer.errors import ConfigError

# Dense (not "with sparsity") figures of the makers' data sheets, in TFLOP/s: bf16 with the tensor cores, and float32
# without them (torch's default; TF32 is off). The whole name must match: a MIG slice is less than its GPU.
_PEAKS: list[tuple[str, float, float | None]] = [
    (r"NVIDIA H100 80GB HBM3|NVIDIA H800", 989.4, 66.9),  # H100 data sheet, SXM
    (r"NVIDIA H100 PCIe", 756.0, 51.0),  # H100 data sheet (2022), PCIe
    (r"NVIDIA H100 NVL", 835.5, None),  # H100 data sheet (2024), NVL
    (r"NVIDIA H200", 989.4, 66.9),  # H200 data sheet, SXM
    (r"NVIDIA H200 NVL", 835.5, None),  # H200 data sheet, NVL
    (r"NVIDIA GH200( 120GB| 480GB)?", 989.4, 66.9),  # GH200 data sheet
    (r"NVIDIA B200", 2250.0, 75.0),  # HGX B200 data sheet: 36 PFLOP/s with sparsity for eight
    (r"(NVIDIA )?A100[- ](SXM4|SXM|PCIE|PCIe)[- ](40|80)GB|NVIDIA A100 80GB PCIe|NVIDIA A800.*GB", 312.0, 19.5),
    (r"NVIDIA A30", 165.0, 10.3),  # A30 data sheet
    (r"NVIDIA A40", 149.7, 37.4),  # A40 data sheet
    (r"NVIDIA A10", 125.0, 31.2),  # A10 data sheet
    (r"NVIDIA A10G", 70.0, 35.0),  # A10G product brief
    (r"NVIDIA L4", 121.0, 30.3),  # L4 data sheet: 242 with sparsity
    (r"NVIDIA L40", 181.05, 90.5),  # L40 data sheet
    (r"NVIDIA L40S", 362.05, 91.6),  # L40S data sheet
    (r"NVIDIA RTX A6000", 154.8, 38.7),  # GA102 white paper
    (r"NVIDIA GeForce RTX 3090", 71.0, 35.6),  # GA102 white paper, float32 accumulation
    (r"NVIDIA GeForce RTX 4090", 165.2, 82.6),  # Ada white paper, float32 accumulation
    (r"AMD Instinct MI300X( OAM)?", 1307.4, 163.4),  # MI300X data sheet
    (r"AMD Instinct MI250X.*", 191.5, 23.9),  # MI250X data sheet, by two: each half is a device
]


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def check_precision(here: Processes, precision: str) -> None:
    """Refuses bf16, on all ranks, when the GPU of any has no units for it: torch would emulate it, very slowly."""
    lacks = precision == "bf16" and here.device.type == "cuda"
    lacks = lacks and not torch.cuda.is_bf16_supported(including_emulation=False)
    found = here.gather(device_name(here.device) if lacks else None)
    rank, name = next(((rank, name) for rank, name in enumerate(found) if name is not None), (None, None))
    if rank is not None:
        raise ConfigError(f"training.precision bf16: the {name} of rank {rank} can't compute in it; use float32.")


def peak_flops(name: str, precision: str) -> float | None:
    """Of one device, in FLOP/s; None for a device or precision that isn't in the table."""
    for pattern, bf16, float32 in _PEAKS:
        if re.fullmatch(pattern, name):
            tera = {"bf16": bf16, "float32": float32}.get(precision)
            return None if tera is None else tera * 1e12
    return None


def memory_peak(device: torch.device) -> int:
    """Bytes: the most that was allocated on a GPU since the last call, or the process's largest size on a CPU."""
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return peak
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024
