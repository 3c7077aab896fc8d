"""AWS's GPU machine types and how their network interfaces are laid out.

The figures are in `instances.json`: AWS's own DescribeInstanceTypes, so a preflight without credentials can choose a
type, count vCPUs for the quota and draw the EFA layout. What a region or zone offers is asked live.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from infra import gpus as choice

# Service Quotas' codes, unit vCPU, each region for itself (providers' facts: several repositories agree).
QUOTAS = {
    ("P", "on-demand"): ("L-417A185B", "Running On-Demand P instances"),
    ("P", "spot"): ("L-7212CCBC", "All P Spot Instance Requests"),
    ("G and VT", "on-demand"): ("L-DB2E81BA", "Running On-Demand G and VT instances"),
    ("G and VT", "spot"): ("L-3819A6DF", "All G and VT Spot Instance Requests"),
}
TABLE = Path(__file__).with_name("instances.json")


@dataclass(frozen=True, kw_only=True)
class InstanceType:
    name: str
    gpu_model: str
    """"H100"; the A100 with 80 GiB is "A100-80GB"."""
    gpu_count: int
    gpu_memory_gib: float
    """Of one GPU, as AWS reports it: 22.4 for what is sold as 24 GB."""
    vcpus: int
    """The unit of the account's quota."""
    memory_gib: int
    network_gbps: int
    """The peak where AWS says "up to"."""
    card_max_interfaces: tuple[int, ...]
    """How many interfaces each network card takes; the position is the card's index."""
    efa_cards: tuple[int, ...]
    """The cards that may hold EFA: on p6-b300 all but card 0."""
    efa_max: int
    local_nvme_gib: int
    """All local disks together."""
    quota_family: Literal["P", "G and VT"]
    """Of the quotas "Running On-Demand P instances", "All G and VT Spot Instance Requests" and so on."""
    spot: bool


@dataclass(frozen=True, kw_only=True)
class InterfaceSlot:
    """Where one network interface goes at launch."""

    card: int
    device: int
    kind: Literal["interface", "efa", "efa-only"]
    """"interface": IP only; "efa": IP and EFA; "efa-only": EFA without an address of the subnet."""


@functools.cache
def all_types() -> dict[str, InstanceType]:
    rows = json.loads(TABLE.read_text(encoding="utf-8"))["types"]
    return TypeAdapter(dict[str, InstanceType]).validate_python(
        {name: {"name": name, **row} for name, row in rows.items()}
    )


def by_name(name: str) -> InstanceType:
    """Raises SpecError with the nearest names."""
    return choice.by_name(name, all_types(), provider="AWS")


def interfaces(instance: InstanceType) -> tuple[InterfaceSlot, ...]:
    """AWS's documented layout with as many EFAs as the type takes (EC2 user guide, efa-acc-inst-types).

    Card 0 device 0 is the primary interface and carries the IP traffic; efa-only may not be primary, so card 0's EFA is
    its device 1, and only a card 0 with room for one interface makes the primary itself an "efa". On every further card
    the EFA is device 0.
    """
    efa_cards = instance.efa_cards[: instance.efa_max]
    room = instance.card_max_interfaces[0] >= 2
    primary = InterfaceSlot(card=0, device=0, kind="efa" if 0 in efa_cards and not room else "interface")
    beside = [InterfaceSlot(card=0, device=1, kind="efa-only")] if 0 in efa_cards and room else []
    further = [InterfaceSlot(card=card, device=0, kind="efa-only") for card in efa_cards if card != 0]
    return (primary, *beside, *further)
