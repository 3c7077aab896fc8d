"""From the stack file to what is asked of Lambda: machine type and regions. The types are those that its API tells."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infra import checks, gpus
from infra.errors import SpecError
from infra.providers.lambda_cloud.api import Offer

if TYPE_CHECKING:
    from infra.spec import ClusterSpec

KEYS = (
    *("provider", "nodes", "processes_per_node", "max_lifetime", "max_hourly_usd", "region", "zones", "gpus"),
    *("instance", "image", "ssh_from"),
)
MAX_NODES = 16
"""Beyond it at least three minutes pass between the first launch and the last, all of them paid for."""
_DESCRIBED = re.compile(r"(?P<model>[^()]+?) ?\((?P<gib>\d+) GB.*\)")
_ARM = ("GH200", "GB200", "GB300")


@dataclass(frozen=True, kw_only=True)
class Type:
    """One machine type."""

    name: str
    gpu_model: str
    """"H100", "A100-80GB": as in the other providers' tables."""
    gpu_count: int
    gpu_memory_gib: float
    """Of one GPU, as Lambda describes it (its "GB" are the makers')."""
    vcpus: int
    usd_per_hour: float
    regions: tuple[str, ...]
    """Those with capacity now."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the stack file comes to."""

    machine: Type
    regions: tuple[str, ...] | None
    """As the stack file orders them; None leaves them to where there is capacity."""


def types(offers: dict[str, Offer]) -> dict[str, Type]:
    """Those that this project can use: with NVIDIA GPUs and x86-64 (not GH200), described as expected."""
    found = {}
    for name, offer in offers.items():
        told = offer.instance_type
        match = _DESCRIBED.fullmatch(told.gpu_description.strip())
        if match is None or told.specs.gpus < 1 or match["model"].startswith(_ARM):
            continue
        model, gib = match["model"].removeprefix("Tesla ").replace(" ", "-"), int(match["gib"])
        found[name] = Type(
            name=name,
            gpu_model="A100-80GB" if (model, gib) == ("A100", 80) else model,
            gpu_count=told.specs.gpus,
            gpu_memory_gib=float(gib),
            vcpus=told.specs.vcpus,
            usd_per_hour=told.price_cents_per_hour / 100,
            regions=tuple(sorted(region.name for region in offer.regions_with_capacity_available)),
        )
    return found


def plan(spec: ClusterSpec, offers: dict[str, Offer]) -> Plan:
    """Raises SpecError with everything that is wrong, a sentence a line; each begins with its key."""
    problems, machine = [], None
    known = types(offers)
    try:
        # Of several with the same GPUs (PCIe, SXM) always the same one: today's capacity must not replace machines.
        machine = gpus.wanted(spec, known, provider="Lambda", example="gpu_8x_h100_sxm5")[0]
    except SpecError as error:
        problems.append(str(error))
    problems += checks.limits(spec, machine, most_nodes=MAX_NODES, provider="Lambda")
    if spec.region is not None and spec.zones is not None:
        problems.append("zones and region are both there: Lambda has regions only; name them under one of the two")
    if problems or machine is None:
        raise SpecError("\n".join(problems))
    return Plan(machine=machine, regions=spec.zones or ((spec.region,) if spec.region else None))


def regions_in_order(choice: Plan, *, running_in: str | None) -> list[str]:
    """Those that the gang is tried in: as asked for, else where it runs already, else where there is capacity now."""
    if choice.regions is not None:
        return list(choice.regions)
    return list(dict.fromkeys([*([running_in] if running_in else []), *choice.machine.regions]))


def no_capacity(instance: str) -> str:
    return (
        f"Lambda has no {instance} free in any region now: try later, or take another machine "
        "(cloud.lambda.ai shows what is there)"
    )
