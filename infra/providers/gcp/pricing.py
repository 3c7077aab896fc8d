"""What a cluster on GCP costs: everything that bills by the hour, a line each; live where Google tells, else catalogue.

Google's price list has a machine in parts (vCPU, GiB of memory, GPU), each with a description in English and nothing
that names the machine type. Where exactly one entry fits each part, their sum is the price; else the catalogue's is.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from infra.cost import Line
from infra.errors import InfraError
from infra.prices import lines as listed
from infra.providers.gcp import api, instances
from infra.providers.gcp import plan as planning
from infra.providers.gcp.plan import Plan

if TYPE_CHECKING:
    from infra.spec import ClusterSpec

COMPUTE_ENGINE = "services/6F81-5844-456A"
LOCAL_SSD_GIB = 375
NAT_MACHINES = 32
"""From so many on a gateway costs no more."""
_PATIENCE_S = 15.0
_FAMILIES = {"g2": "G2", "a2": "A2", "a3-highgpu": "A3", "a3-megagpu": "A3Plus"}
_GPUS = {
    "nvidia-l4": "Nvidia L4 GPU",
    "nvidia-tesla-a100": "Nvidia Tesla A100 GPU",
    "nvidia-a100-80gb": "Nvidia Tesla A100 80GB GPU",
    "nvidia-h100-80gb": "Nvidia H100 80GB GPU",
    "nvidia-h100-mega-80gb": "Nvidia H100 80GB Mega GPU",
}


def lines(spec: ClusterSpec) -> list[Line]:
    """Machines, their disks, NAT, addresses and storage."""
    choice = planning.plan(spec)
    has_nat = spec.egress == "nat" and spec.nodes > 1
    found = [_machines(spec, choice), _disks(spec, choice)]
    if ssds := choice.machine.local_ssd_count:
        gib = ssds * LOCAL_SSD_GIB * spec.nodes
        found.append(
            listed.monthly("gcp", "local_ssd", f"{spec.nodes * ssds} local SSDs that come with them, {gib} GiB", gib)
        )
    found.append(listed.hourly("gcp", "external_ipv4", "the head's public address", outlives_guard=False))
    if has_nat:
        found.append(listed.hourly("gcp", "external_ipv4", "the public address of its NAT"))
        machines = spec.nodes - 1
        what = f"NAT for {machines} node(s) (egress: endpoints has none)"
        if machines > NAT_MACHINES:
            found.append(listed.hourly("gcp", "cloud_nat_cap_hour", what, use="cloud_nat_gb", outlives_guard=False))
        else:
            found.append(
                listed.hourly(
                    "gcp", "cloud_nat_vm_hour", what, count=machines, use="cloud_nat_gb", outlives_guard=False
                )
            )
    if spec.storage is not None:
        found.append(_storage(spec.storage.kind, spec.storage.size_gib))
    return found


def sum_of_parts(
    skus: list[Mapping[str, Any]], machine: instances.InstanceType, *, region: str, market: str
) -> float | None:
    """USD per hour by Google's price list; None where a part has no entry or several. Pure."""
    family = next((word for start, word in _FAMILIES.items() if machine.name.startswith(start)), None)
    gpu = _GPUS.get(machine.accelerator_type)
    if family is None or gpu is None or market == "flex-start":
        return None
    spot = market == "spot"
    before, after = ("Spot Preemptible ", " attached to Spot Preemptible VMs") if spot else ("", "")
    total = 0.0
    for pattern, amount in (
        (f"{before}{family} Instance Core running in .+", machine.vcpus),
        (f"{before}{family} Instance Ram running in .+", machine.memory_gib),
        (f"{gpu}{after} running in .+", machine.gpu_count),
    ):
        found = [sku for sku in skus if _fits(sku, pattern, region, "Preemptible" if spot else "OnDemand")]
        price = _price(found[0]) if len(found) == 1 else None
        if price is None:
            return None
        total += price * amount
    return total


def _fits(sku: Mapping[str, Any], pattern: str, region: str, usage: str) -> bool:
    return (
        re.fullmatch(pattern, str(sku.get("description"))) is not None
        and region in sku.get("serviceRegions", [])
        and sku.get("category", {}).get("usageType") == usage
    )


def _price(sku: Mapping[str, Any]) -> float | None:
    """Of one unit for an hour; None where it isn't by the hour, or has steps."""
    try:
        expression = sku["pricingInfo"][-1]["pricingExpression"]
        (rate,) = expression["tieredRates"]
        if expression["usageUnit"] not in ("h", "GiBy.h") or rate["unitPrice"]["currencyCode"] != "USD":
            return None
        return int(rate["unitPrice"].get("units", 0)) + int(rate["unitPrice"].get("nanos", 0)) / 1e9
    except (KeyError, IndexError, ValueError, TypeError):
        return None


@functools.cache
def _price_list() -> list[Mapping[str, Any]]:
    """Compute Engine's whole list: Google filters nothing. Raises InfraError."""
    client = api.client_of("", patience_s=_PATIENCE_S)
    path, asked = f"{COMPUTE_ENGINE}/skus", {"pageSize": "5000"}
    found = client.pages(path, "skus", doing="reading Google's price list", service="billing", parameters=asked)
    return [sku for sku in found if sku.get("category", {}).get("resourceFamily") == "Compute"]


def _live(choice: Plan, market: str) -> float | None:
    try:
        return sum_of_parts(_price_list(), choice.machine, region=choice.region, market=market)
    except InfraError:
        return None  # no rights to the price list, or it is down: that must not stop a cluster


def _machines(spec: ClusterSpec, choice: Plan) -> Line:
    usd, source, as_of = listed.machine("gcp", region=choice.region, instance=choice.machine.name, market=spec.market)
    live = _live(choice, spec.market)
    if live is not None:
        usd, source, as_of = live, "Google's price list", datetime.now(UTC)
    return Line(
        what=f"{spec.nodes} × {choice.what} in {choice.region}",
        usd_per_hour=None if usd is None else usd * spec.nodes,
        source=source,
        as_of=as_of,
        per_use="a reservation bills by itself until its end, used or not" if spec.reservation else "",
    )


def _disks(spec: ClusterSpec, choice: Plan) -> Line:
    gib = (spec.disk_gib or planning.DISK_GIB) * spec.nodes
    kind = choice.machine.boot_disk_type
    return listed.monthly("gcp", kind.replace("-", "_"), f"{spec.nodes} boot disk(s), {gib} GiB of {kind}", gib)


def _storage(kind: str, size_gib: int | None) -> Line:
    if kind == "nfs":
        return listed.monthly(
            "gcp", "filestore_zonal", f"{size_gib} GiB of Filestore", size_gib or 0, outlives_guard=True
        )
    return listed.by_use("gcp", "gcs_standard", "bucket")
