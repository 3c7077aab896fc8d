"""Whether the project may have so much: what is needed against what is free, each pool apart.

Two places tell: the region (and the project) in Compute's own answer, with what is used; and the Cloud Quotas API for
newer GPUs, with the limit alone, so that what is used is counted from the project's machines.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infra.errors import AccessError, ProviderError
from infra.providers.gcp import instances
from infra.providers.gcp import plan as planning
from infra.providers.gcp.api import Client
from infra.providers.gcp.plan import Plan

if TYPE_CHECKING:
    from infra.gang import Machine
    from infra.spec import ClusterSpec

# Machines that are deleted within this time may take GPUs of either pool (compute/docs/instances/limit-vm-runtime).
EITHER_POOL_S = 7 * 86400
UNLIMITED = float("inf")


@dataclass(frozen=True, kw_only=True)
class Quota:
    """One quota in one place."""

    name: str
    pool: str
    """For messages: "on-demand", "spot and flex-start"."""
    limit: float
    used: float

    @property
    def free(self) -> float:
        return max(0.0, self.limit - self.used)


def problems(
    client: Client, spec: ClusterSpec, choice: Plan, *, project: Mapping[str, Any], ours: Iterable[Machine]
) -> list[str]:
    """One sentence each. `project`: Compute's answer about it. Machines of ours that run aren't needed again."""
    doing = f"asking for the quotas of {choice.region}"
    region = client.get(f"projects/{client.project}/regions/{choice.region}", doing=doing)
    if not isinstance(region.get("quotas"), list):
        raise ProviderError(f"{doing}: Google's answer has no quotas, so it tells nothing: run it again")
    running = sum(1 for machine in ours if machine.lives)
    missing = max(0, spec.nodes - running)
    return [
        *_gpus(client, spec, choice, region=region, missing=missing),
        *_others(spec, choice, region=region, project=project, missing=missing, first=running == 0),
    ]


def _gpus(client: Client, spec: ClusterSpec, choice: Plan, *, region: Mapping[str, Any], missing: int) -> list[str]:
    needed = missing * choice.machine.gpu_count
    names = [choice.machine.quota_on_demand if choice.provisioning == "STANDARD" else choice.machine.quota_spot]
    if choice.provisioning == "STANDARD" and spec.max_lifetime_s <= EITHER_POOL_S:
        names.append(choice.machine.quota_spot)
    quotas = [quota for name in names if (quota := _quota(client, name, choice, region)) is not None]
    if len(quotas) < len(names) or any(needed <= quota.free for quota in quotas):
        return []  # one that can't be read may suffice: Google says so at the start, and nothing is kept then
    told = " and ".join(
        f"{quota.free:g} of {quota.limit:g} are free of {quota.name} ({quota.pool} pool)" for quota in quotas
    )
    first = quotas[0]
    other = "spot" if first.pool == "on-demand" else "on-demand"
    return [
        f"quota: {missing} × {choice.machine.name} need {needed} GPUs in {choice.region}, and {told}: raise "
        f"{first.name} to {first.used + needed:g} under IAM & Admin > Quotas in the console (hours to days), or take "
        f"another region, fewer nodes, or market: {other}, where the machine is sold so"
    ]


def _others(
    spec: ClusterSpec,
    choice: Plan,
    *,
    region: Mapping[str, Any],
    project: Mapping[str, Any],
    missing: int,
    first: bool,
) -> list[str]:
    """Disks, addresses and networks. `first`: nothing of the stack is there yet, as far as its machines tell."""
    disk = "HDB_TOTAL_GB" if choice.machine.boot_disk_type == "hyperdisk-balanced" else "SSD_TOTAL_GB"
    needs = [
        (region, "INSTANCES", missing, "nodes"),
        (region, disk, missing * (spec.disk_gib or planning.DISK_GIB), "disk_gib"),
        (region, "IN_USE_ADDRESSES", 2 if first else 0, "egress"),
    ]
    if choice.provisioning == "STANDARD" and "/" not in choice.machine.quota_on_demand:
        needs.append((project, "GPUS_ALL_REGIONS", missing * choice.machine.gpu_count, "nodes"))
    if first:
        needs.append((project, "NETWORKS", planning.host_networks(choice.machine), "instance"))
    found = []
    for where, metric, needed, key in needs:
        quota = _metric(where, metric)
        if quota is not None and needed > quota.free:
            place = choice.region if where is region else "the project"
            found.append(
                f"quota: {needed} are needed of {metric} in {place} (key trainstack:cluster.{key}), and {quota.free:g} "
                f"of {quota.limit:g} are free: raise it to {quota.used + needed:g} under IAM & Admin > Quotas in the "
                "console, or ask for less"
            )
    return found


def _quota(client: Client, name: str, choice: Plan, region: Mapping[str, Any]) -> Quota | None:
    """None where it can't be read; that is told, since the cluster may still be had."""
    kind, _, family = name.partition("/")
    if not family:
        found = _metric(region, name)
        why = "the region doesn't tell it"
    else:
        try:
            found, why = _family(client, kind, family, choice.region), "Google tells no such quota"
        except AccessError as error:
            found, why = None, str(error)
    if found is None:
        print(f"note: quota {name} of {choice.region} could not be checked: {why}", file=sys.stderr, flush=True)
    return found


def _metric(where: Mapping[str, Any], metric: str) -> Quota | None:
    pool = "spot and flex-start" if metric.startswith("PREEMPTIBLE") else "on-demand"
    for each in where.get("quotas", []):
        if each.get("metric") == metric:
            return Quota(name=metric, pool=pool, limit=float(each["limit"]), used=float(each.get("usage", 0)))
    return None


def _family(client: Client, kind: str, family: str, region: str) -> Quota | None:
    """By the metric's name: under which id the list has it isn't documented for each."""
    doing = f"asking for quota {kind} of {family}"
    path = f"projects/{client.project}/locations/global/services/compute.googleapis.com/quotaInfos"
    wanted = {"region": region, "gpu_family": family}
    fitting = [
        info
        for quota in client.pages(path, "quotaInfos", doing=doing, service="quotas")
        if quota.get("metric") == f"compute.googleapis.com/{kind}"
        for info in quota.get("dimensionsInfos", [])
        if all(wanted.get(key) == value for key, value in info.get("dimensions", {}).items())
        and region in info.get("applicableLocations", [region])
    ]
    if not fitting:
        return None
    # The one that says most is the one that holds: a default has fewer dimensions.
    value = max(fitting, key=lambda info: len(info.get("dimensions", {}))).get("details", {}).get("value")
    if value is None:
        raise ProviderError(f"{doing}: Google's answer has no value, so it tells nothing: run it again")
    is_preemptible = kind.startswith("preemptible")
    return Quota(
        name=f"{kind} with gpu_family {family}",
        pool="spot and flex-start" if is_preemptible else "on-demand",
        limit=UNLIMITED if int(value) < 0 else float(value),
        used=_used(client, f"{kind}/{family}", region, is_preemptible=is_preemptible),
    )


def _used(client: Client, name: str, region: str, *, is_preemptible: bool) -> float:
    """GPUs of the project's machines in that pool, whoever made them."""
    used = 0
    for each in client.aggregated("instances", doing=f"counting the machines in {region}"):
        zone, kind = (str(each.get(key, "")).rpartition("/")[2] for key in ("zone", "machineType"))
        known = instances.all_types().get(kind)
        if known is None or zone.rpartition("-")[0] != region or each.get("status") in ("TERMINATED", "SUSPENDED"):
            continue
        model = each.get("scheduling", {}).get("provisioningModel", "STANDARD")
        if (model in ("SPOT", "FLEX_START")) == is_preemptible and name in (known.quota_on_demand, known.quota_spot):
            used += known.gpu_count
    return float(used)
