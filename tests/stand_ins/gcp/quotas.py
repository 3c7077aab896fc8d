"""Limits of the project, of its regions and of its GPU families, and how much of each is used."""

from __future__ import annotations

from typing import Any

from tests.stand_ins.gcp import catalogue
from tests.stand_ins.gcp.store import Body, Store, parts_of

_COUNTED = {"networks": "NETWORKS", "subnetworks": "SUBNETWORKS", "firewalls": "FIREWALLS", "routers": "ROUTERS"}
_SPOT = ("SPOT", "FLEX_START")  # flex-start draws on the preemptible quota [shared/facts/providers_big.md GCP 6: mem]


class Quotas:
    """Metric names: those of regions.get, and "family/NVIDIA_H100", "preemptible_family/..." for Cloud Quotas."""

    def __init__(self) -> None:
        self.limits: dict[tuple[str, str], float] = {}

    def limit(self, metric: str, region: str) -> float | None:
        """None where there is no such quota."""
        set_ = self.limits.get((metric, region), self.limits.get((metric, "")))
        if set_ is not None:
            return set_
        if "family/" in metric:
            return catalogue.FAMILY_GPUS
        return catalogue.PROJECT_QUOTAS.get(metric, catalogue.REGION_QUOTAS.get(metric))

    def usage(self, store: Store, metric: str, region: str) -> float:
        used = 0.0
        for path, body in store.resources.items():
            for (name, where), amount in needs(path, body).items():
                if name == metric and where == region:
                    used += amount
        return used

    def exceeded(self, store: Store, path: str, body: Body) -> list[Body]:
        """The operation's errors if `body` came on top of what there is (it mustn't be in the store)."""
        for (metric, region), amount in needs(path, body).items():
            limit = self.limit(metric, region)
            if limit is not None and self.usage(store, metric, region) + amount > limit:
                return [_error(metric, region, limit)]
        return []

    def of_region(self, store: Store, region: str) -> list[Body]:
        return [self._entry(store, metric, region) for metric in catalogue.REGION_QUOTAS]

    def of_project(self, store: Store) -> list[Body]:
        return [self._entry(store, metric, "") for metric in catalogue.PROJECT_QUOTAS]

    def _entry(self, store: Store, metric: str, region: str) -> Body:
        return {"metric": metric, "limit": self.limit(metric, region), "usage": self.usage(store, metric, region)}

    def infos(self) -> list[Body]:
        """quotaInfos of Cloud Quotas: the two GPU family quotas; each family with each region, then the default 0."""
        return [
            self._info("family/", "gpus_per_gpu_family"),
            self._info("preemptible_family/", "preemptible_gpus_per_gpu_family"),
        ]

    def _info(self, prefix: str, metric: str) -> Body:
        identity = metric.upper().replace("_", "-") + "-per-project-region"
        dimensions = [
            {
                "dimensions": {"gpu_family": family, "region": region},
                "details": {"value": str(int(self.limit(prefix + family, region) or 0))},
                "applicableLocations": [region],
            }
            for family in catalogue.GPU_FAMILIES
            for region in catalogue.ZONES
        ]
        service = f"projects/{catalogue.PROJECT_NUMBER}/locations/global/services/compute.googleapis.com"
        return {
            "name": f"{service}/quotaInfos/{identity}",
            "quotaId": identity,
            "metric": f"compute.googleapis.com/{metric}",
            "service": "compute.googleapis.com",
            "containerType": "PROJECT",
            "dimensions": ["gpu_family", "region"],
            "isPrecise": True,
            "metricUnit": "1",
            "quotaIncreaseEligibility": {"isEligible": True},
            "dimensionsInfos": [*dimensions, {"details": {"value": "0"}, "applicableLocations": list(catalogue.ZONES)}],
        }


def needs(path: str, body: Body) -> dict[tuple[str, str], float]:
    """What a resource draws: (metric, region or "" for the project) -> amount."""
    scope, collection, _ = parts_of(path)
    if collection in _COUNTED:
        return {(_COUNTED[collection], ""): 1}
    where = scope.partition("/")[2]
    if collection == "addresses":
        return {("STATIC_ADDRESSES", where): 1} if body.get("addressType") != "INTERNAL" else {}
    region = catalogue.region_of(where)
    if collection == "disks":
        ssd = str(body.get("type", "")).endswith(("pd-ssd", "pd-balanced"))
        return {("SSD_TOTAL_GB" if ssd else "DISKS_TOTAL_GB", region): float(body.get("sizeGb", 0))}
    if collection != "instances" or body.get("status") in ("TERMINATED", "SUSPENDED"):
        return {}
    return _of_instance(body, region)


def _of_instance(body: Body, region: str) -> dict[tuple[str, str], float]:
    machine = catalogue.MACHINE_TYPES[body["machineType"].rpartition("/")[2]]
    spot = body.get("scheduling", {}).get("provisioningModel") in _SPOT
    nics: list[dict[str, Any]] = body.get("networkInterfaces", [])
    found: dict[tuple[str, str], float] = {("INSTANCES", region): 1}
    outside = sum(len(nic.get("accessConfigs", [])) for nic in nics)
    if outside:
        found["IN_USE_ADDRESSES", region] = outside
    found["PREEMPTIBLE_CPUS" if spot else "CPUS", region] = machine.vcpus
    found["CPUS_ALL_REGIONS", ""] = machine.vcpus
    if machine.gpus:
        found[machine.spot_quota if spot else machine.quota, region] = machine.gpus
        found["GPUS_ALL_REGIONS", ""] = machine.gpus
    return found


def _error(metric: str, region: str, limit: float) -> Body:
    prefix, slash, family = metric.partition("/")
    name = "gpus_per_gpu_family" if prefix == "family" else "preemptible_gpus_per_gpu_family"
    shown = name.upper() if slash else metric
    dimensions = {"region": region} if region else {}
    if slash:
        dimensions["gpu_family"] = family
    info = {
        "metricName": f"compute.googleapis.com/{name if slash else metric.lower()}",
        "limitName": shown.replace("_", "-") + ("-per-project-region" if region else "-per-project"),
        "dimensions": dimensions,
        "limit": limit,
    }
    where = f"in region {region}" if region else "globally"
    return {
        "code": "QUOTA_EXCEEDED",
        "message": f"Quota '{shown}' exceeded.  Limit: {limit} {where}.",
        "errorDetails": [{"quotaInfo": info}],
    }
