"""What Vast.ai takes and refuses, from its published descriptions of the calls (docs of 2026-08)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

Body = dict[str, Any]

# Create: the fields with their types, and the limits of x-input-validation. `env` is "type: string" in the schema and a
# JSON object in the guide and in Vast.ai's own client, which is what it gets; so here too.
_CREATE: dict[str, tuple[type, ...]] = {
    "image": (str,),
    "template_hash_id": (str,),
    "label": (str,),
    "disk": (int, float),
    "runtype": (str,),
    "target_state": (str,),
    "price": (int, float),
    "env": (dict,),
    "cancel_unavail": (bool,),
    "vm": (bool,),
    "onstart": (str,),
    "args": (list,),
    "args_str": (str,),
    "use_jupyter_lab": (bool,),
    "jupyter_dir": (str,),
    "python_utf8": (bool,),
    "lang_utf8": (bool,),
    "force": (bool,),
    "user": (str,),
    "image_login": (str,),
    "volume_info": (dict,),
}
_RUNTYPES = ("ssh", "jupyter", "args", "ssh_proxy", "ssh_direct", "jupyter_proxy", "jupyter_direct")
_MOST_PORTS = 64

_SEARCHED = frozenset(
    [
        "verified",
        "rentable",
        "rented",
        "gpu_name",
        "reliability",
        "num_gpus",
        "gpu_ram",
        "duration",
        "machine_id",
        "dlperf_per_dphtotal",
        "dph_total",
        "flops_per_dphtotal",
        "geolocation",
        "gpu_arch",
        "dlperf",
        "cuda_max_good",
        "inet_down",
        "inet_up",
        "inet_down_cost",
        "inet_up_cost",
        "driver_version",
        "compute_cap",
        "cpu_arch",
        "has_avx",
        "cpu_cores",
        "cpu_cores_effective",
        "cpu_ghz",
        "cpu_ram",
        "datacenter",
        "external",
        "disk_bw",
        "disk_space",
        "bw_nvlink",
        "gpu_max_power",
        "gpu_max_temp",
        "gpu_mem_bw",
        "gpu_total_ram",
        "gpu_frac",
        "gpu_display_active",
        "direct_port_count",
        "host_id",
        "id",
        "min_bid",
        "mobo_name",
        "pci_gen",
        "pcie_bw",
        "storage_cost",
        "static_ip",
        "total_flops",
        "os_version",
        "ubuntu_version",
        "verification",
        "vms_enabled",
    ]
)
_COLUMNS = ("actual_status", "gpu_name", "verification", "id", "label")
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "neq": operator.ne,
    "gt": operator.gt,
    "lt": operator.lt,
    "gte": operator.ge,
    "lte": operator.le,
    "in": lambda value, wanted: value in wanted,
    "notin": lambda value, wanted: value not in wanted,
}


class Refused(Exception):
    def __init__(self, status: int, error: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status, self.body = status, {"success": False, "error": error, "msg": message, **more}


def check_create(body: Body) -> None:
    for key, value in body.items():
        kinds = _CREATE.get(key)
        if kinds is None or not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise _wrong(f"{key} is unknown or of a wrong type")
    if "image" not in body and "template_hash_id" not in body:
        raise _wrong("image is missing")
    env = body.get("env", {})
    pairs = [(str(name), value) for name, value in env.items()]
    started = "".join([*body.get("args", []), body.get("args_str", ""), body.get("onstart", "")])
    limits = {
        "image": len(body.get("image", "")) <= 1024,
        "label": len(body.get("label", "")) <= 256,
        "args": len(started) <= 4096 and all(isinstance(each, str) for each in body.get("args", [])),
        "env": all(isinstance(value, str) and len(name) + len(value) <= 256 for name, value in pairs)
        and sum(len(name) + len(value) for name, value in pairs) <= 32768
        and sum(name.startswith("-p ") for name, _ in pairs) <= _MOST_PORTS,
        "disk": body.get("disk", 8) >= 8,
        "runtype": body.get("runtype", "ssh") in _RUNTYPES,
        "target_state": body.get("target_state", "running") in ("running", "stopped"),
    }
    if wrong := [key for key, holds in limits.items() if not holds]:
        raise _wrong(f"{', '.join(wrong)} out of bounds")
    if "price" in body and not 0.001 <= body["price"] <= 128.0:
        raise Refused(400, "invalid_price", "price out of bounds")


def search(body: Body, offers: Mapping[int, Body]) -> list[Body]:
    """As the search answers `body`, in its order."""
    body = dict(body)
    limit, kind, disk = body.pop("limit", 64), body.pop("type", "ondemand"), body.pop("allocated_storage", 8)
    order = body.pop("order", [["score", "desc"]])
    if kind not in ("ondemand", "bid", "reserved") or not isinstance(limit, int) or not isinstance(disk, int | float):
        raise Refused(400, "invalid_request", "type, limit or allocated_storage")
    filters = {"verified": {"eq": True}, "rentable": {"eq": True}, "rented": {"eq": False}, **body}
    for key, wanted in filters.items():
        if key not in _SEARCHED or not isinstance(wanted, dict) or not set(wanted) <= set(OPERATORS):
            raise Refused(400, "invalid_request", f"{key} can't be searched for so")
    found = [_told(each, kind, disk) for each in offers.values() if _is_offered(each, kind) and _matches(each, filters)]
    for column, direction in reversed(order):
        found.sort(key=lambda each: each[column], reverse=direction == "desc")
    return found[:limit]


def _is_offered(offer: Body, kind: str) -> bool:
    return kind != "bid" or offer["min_bid"] is not None


def _matches(offer: Body, filters: Body) -> bool:
    country = offer["geolocation"].rpartition(", ")[2]
    value = {
        **offer,
        "verified": offer["verification"] == "verified",
        "datacenter": offer["hosting_type"] == 1,
        "external": bool(offer["external"]),
        "geolocation": country,
    }
    return all(OPERATORS[op](value[key], wanted) for key, ops in filters.items() for op, wanted in ops.items())


def _told(offer: Body, kind: str, disk: float) -> Body:
    base = offer["min_bid"] if kind == "bid" else offer["dph_base"]
    storage = disk * offer["storage_cost"] / 720
    prices = {"dph_base": base, "storage_total_cost": storage, "dph_total": base + storage, "is_bid": kind == "bid"}
    return {**offer, **prices}


def select(filters: Body, instances: list[Body]) -> list[Body]:
    """As the list of instances takes select_filters."""
    for key, wanted in filters.items():
        if key not in _COLUMNS or not isinstance(wanted, dict) or not set(wanted) <= set(OPERATORS):
            raise Refused(400, "invalid_request", f"Error in query parameters: {key} is not a valid search key")
    return [
        each
        for each in instances
        if all(OPERATORS[op](each[key], wanted) for key, ops in filters.items() for op, wanted in ops.items())
    ]


def _wrong(message: str) -> Refused:
    return Refused(400, "invalid_args", f"error 400/3467: Invalid args: {message}")
