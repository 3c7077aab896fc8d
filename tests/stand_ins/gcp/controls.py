"""The control paths, POST /_stand_in/<name>: each a method here, with the JSON body's members as arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.stand_ins.gcp import catalogue, instances
from tests.stand_ins.gcp.store import Body

if TYPE_CHECKING:
    from tests.stand_ins.gcp.emulator import Emulator


class Controls:
    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self._cloud = emulator.cloud
        self._faults = emulator.cloud.faults

    def apply(self, name: str, arguments: dict[str, Any]) -> Any:
        if name.startswith("_") or name == "apply":
            raise AttributeError(name)
        if name in ("wait_until_hanging", "release"):  # these must not hold the lock
            return getattr(self, name)(**arguments)
        with self._emulator.lock:
            return getattr(self, name)(**arguments)

    def reset(self) -> None:
        self._emulator.reset()

    def register_key(self, public_key: str) -> None:
        self._cloud.public_key = public_key

    def summary(self) -> Body:
        return self._cloud.summary()

    def leftovers(self) -> list[str]:
        return self._cloud.leftovers()

    def calls(self) -> list[Body]:
        return self._faults.calls

    # -- capacity and quotas ----------------------------------------------------------------------------------------

    def capacity(self, zone: str, machine_type: str, machines: int, code: str) -> None:
        _known(zone, machine_type)
        self._faults.capacity[zone, machine_type] = (machines, code)

    def offer(self, machine_type: str, zones: list[str]) -> None:
        for zone in zones:
            _known(zone, machine_type)
        self._cloud.offerings[machine_type] = zones

    def unsupported(self, zone: str, machine_type: str) -> None:
        _known(zone, machine_type)
        self._faults.unsupported.add((zone, machine_type))

    def quota(self, metric: str, region: str, limit: float) -> None:
        known = {*catalogue.REGION_QUOTAS, *catalogue.PROJECT_QUOTAS}
        known |= {f"{prefix}{each}" for each in catalogue.GPU_FAMILIES for prefix in ("family/", "preemptible_family/")}
        if metric not in known:
            raise KeyError(f"no metric {metric}: {', '.join(sorted(known))}")
        self._cloud.quotas.limits[metric, region] = limit

    # -- faults -----------------------------------------------------------------------------------------------------

    def error(self, **order: Any) -> None:
        self._faults.plan_error(**order)

    def plan(self, **order: Any) -> None:
        self._faults.plan(**order)

    def api(self, name: str, on: bool) -> None:
        (self._faults.apis_off.discard if on else self._faults.apis_off.add)(name)

    def expire_tokens(self, after_calls: int) -> None:
        self._faults.expire_in = after_calls

    def revoke_key(self, after_calls: int) -> None:
        self._faults.revoke_in = after_calls

    def hide(self, method: str, reads: int, times: int) -> None:
        self._faults.hide += [(method, reads)] * times

    def slow_stop(self, name: str, reads: int, times: int) -> None:
        self._faults.stopping += [(name, reads)] * times

    def operations_take(self, reads: int) -> None:
        self._cloud.store.operation_reads = reads

    def hang(self, method: str, when: str, nth: int) -> None:
        self._faults.plan_hang(method=method, when=when, nth=nth)

    def wait_until_hanging(self, method: str, timeout_s: float) -> bool:
        return self._faults.wait_until_hanging(method, timeout_s)

    def release(self, execute: bool) -> int:
        return self._faults.release(execute=execute)

    def clear(self) -> None:
        """No order of the kinds error, malformed, empty and in_use any more."""
        self._faults.planned.clear()

    # -- the course of the world ------------------------------------------------------------------------------------

    def let_time_pass(self, seconds: float) -> None:
        instances.let_time_pass(self._cloud, seconds)

    def preempt(self, zone: str, name: str) -> None:
        self._cloud.store.finish(instances.preempt(self._cloud, _instance(zone, name)))

    def remove(self, path: str) -> None:
        """By somebody else's hand, without an operation."""
        if path not in self._cloud.store.resources:
            raise KeyError(path)
        if "/instances/" in path:
            self._cloud.store.resources[path]["deletionProtection"] = False
            self._cloud.store.finish(instances.delete(self._cloud, path))
        else:
            del self._cloud.store.resources[path]

    def guest_attributes(self, zone: str, name: str, namespace: str, values: dict[str, str]) -> None:
        self._cloud.guest_attributes.setdefault(_instance(zone, name), {})[namespace] = values

    def external_addresses(self, addresses: list[str]) -> None:
        self._cloud.external_addresses += addresses

    def put_object(self, bucket: str, name: str) -> None:
        if bucket not in self._cloud.buckets:
            raise KeyError(bucket)
        self._cloud.objects.setdefault(bucket, []).append(name)


def _instance(zone: str, name: str) -> str:
    return f"projects/{catalogue.PROJECT}/zones/{zone}/instances/{name}"


def _known(zone: str, machine_type: str) -> None:
    if zone not in catalogue.all_zones():
        raise KeyError(f"no zone {zone}: {', '.join(catalogue.all_zones())}")
    if machine_type not in catalogue.MACHINE_TYPES:
        raise KeyError(f"no machine type {machine_type}: {', '.join(catalogue.MACHINE_TYPES)}")
