"""The gang's machines on RunPod: a pod, or a cluster of pods by one call. The order of things: infra/gang.py.

A create knows no idempotency token, so the token is in the name: before a create, and after one whose answer never
came, what bears it is looked for. What was made is compared with what was promised before it is kept.

A machine's id is its pod's, or, since pods of a cluster come late and can't be ended alone, "<cluster>/<rank>".
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from infra import label, quote
from infra.ending import LOOK_EVERY_S, end_each
from infra.errors import CapacityError, ProviderError
from infra.gang import Machine, Order
from infra.making import end_or_tell, made_once
from infra.providers.base import Deployment
from infra.providers.runpod import plan, pricing, request
from infra.providers.runpod.api import Cluster, Kind, NotThereError, Pod, RunPod

State = Literal["starting", "running", "stopped", "ended"]
BOOT_DEADLINE_S = 1800.0  # images of many GB
_END_DEADLINE_S = 600.0
_LOOKS = 12
_LOOKS_AT_CLUSTER = 60  # its pods are placed one by one
_STATES: Mapping[str, State] = {
    "PROVISIONING": "starting",
    "STARTING": "starting",
    "RUNNING": "running",
    "EXITED": "stopped",
    "ERROR": "stopped",
    "TERMINATED": "ended",
}


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What is made and ended as one: a pod that belongs to no cluster, or a cluster with its pods that show."""

    kind: Kind
    id: str
    name: str
    pods: tuple[Pod, ...]
    cluster: Cluster | None = None

    @property
    def lives(self) -> bool:
        return self.cluster is not None or any(each.status != "TERMINATED" for each in self.pods)

    @property
    def usd_per_hour(self) -> float | None:
        """None while not all of its pods show."""
        whole = self.cluster.compute.podCount if self.cluster else 1
        return sum(each.cost for each in self.pods) if len(self.pods) == whole else None


def units(client: RunPod) -> list[Unit]:
    """All of the account. A cluster that is no longer listed is there for as long as one of its pods is."""
    members: dict[str, list[Pod]] = {}
    found = []
    for pod in client.pods():
        if pod.cluster is not None:
            members.setdefault(pod.cluster.id, []).append(pod)
        else:
            found.append(Unit(kind="pods", id=pod.id, name=pod.name, pods=(pod,)))
    for cluster in client.clusters():
        pods = tuple(members.pop(cluster.id, ()))
        found.append(Unit(kind="clusters", id=cluster.id, name=cluster.name, pods=pods, cluster=cluster))
    found += [Unit(kind="clusters", id=id_, name="", pods=tuple(pods)) for id_, pods in members.items()]
    return found


class RunPodMachines:
    """One stack's machines; implements infra.gang.LaunchesWhole. `wish`: plan.wish; `places`: by zone, its volume."""

    boot_deadline_s = BOOT_DEADLINE_S

    def __init__(
        self,
        deployment: Deployment,
        client: RunPod,
        *,
        wish: Mapping[str, Any],
        places: Mapping[str, Any],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._deployment, self._client, self._wish, self._places = deployment, client, wish, places
        self._sleep, self._clock, self._now = sleep, clock, now

    def launch(self, order: Order) -> str:
        return self.launch_whole([order])[order.name]

    def launch_whole(self, orders: Sequence[Order]) -> dict[str, str]:
        """All of them, at the price that was shown, or none."""
        first, most = orders[0], quote.most(self._deployment)
        made = self._with_token(first.token)
        if made is None:
            made = self._created(orders, most)
        self._keep(made, first.zone, most)
        if plan.product(self._wish) == "POD":
            return {first.name: made}
        return {order.name: f"{made}/{order.rank}" for order in orders}

    def find(self, ids: Iterable[str] = ()) -> list[Machine]:
        wanted = {id_.partition("/")[0] for id_ in ids}
        found = []
        for unit in units(self._client):
            if unit.id in wanted or label.is_ours(unit.name, self._deployment):
                found += self._machines(unit)
        return found

    def end(self, ids: Sequence[str]) -> None:
        ends: dict[str, Kind] = {id_.partition("/")[0]: "clusters" if "/" in id_ else "pods" for id_ in ids}
        end(self._client, ends, sleep=self._sleep, clock=self._clock)

    def _created(self, orders: Sequence[Order], most: float) -> str:
        first = orders[0]
        gpu = plan.offered(
            self._client.gpus(plan.product(self._wish), int(self._wish["gpu_count"]), afresh=True), self._wish
        )
        centers = plan.data_centers(gpu, first.zone)
        if not centers:
            raise CapacityError(plan.no_capacity(self._wish, first.zone))
        rate = pricing.machines_usd_per_hour(self._client, self._wish, gpu)
        whole = None if rate is None else rate + pricing.disk_usd_per_hour(self._wish)
        if whole is not None and whole > most:
            raise CapacityError(
                f"{plan.what(self._wish)} on RunPod costs {quote.too_much(whole, most)}: run `pulumi preview` for "
                "today's price"
            )
        is_pod = plan.product(self._wish) == "POD"
        body = request.body(
            orders,
            self._wish,
            self._deployment,
            data_centers=[] if first.zone == plan.ANYWHERE else centers,
            volume=self._places.get(first.zone, {}).get("volume"),
            url=self._client.url,
        )
        doing = f"{first.name if is_pod else f'{len(orders)} nodes'} in {first.zone} from RunPod"
        return made_once(
            lambda: self._client.create("pods" if is_pod else "clusters", body, doing=doing),
            with_token=lambda: self._with_token(first.token),
            sleep=self._sleep,
        )

    def _keep(self, id_: str, zone: str, most: float) -> None:
        """What was made is what was promised; if not, it is ended. Raises ProviderError."""
        is_pod = plan.product(self._wish) == "POD"
        wrong: str | None = "isn't shown, so that nobody can tell what it costs"
        for _ in range(_LOOKS if is_pod else _LOOKS_AT_CLUSTER):
            unit = next((each for each in units(self._client) if each.id == id_), None)
            if unit is not None and (wrong := self._broken_promise(unit, zone)) is not None:
                break
            if unit is not None and (costs := unit.usd_per_hour) is not None:
                wrong = f"costs {quote.too_much(costs, most)}" if costs > most else None
                break
            wrong = "doesn't show all of its nodes, so that nobody can tell what it costs"
            self._sleep(LOOK_EVERY_S)
        if wrong is None:
            return
        why = f"RunPod's {'pod' if is_pod else 'cluster'} {id_} {wrong}"
        end_or_tell(self.end, id_ if is_pod else f"{id_}/0", why)
        raise ProviderError(f"{why}: it was ended; run `pulumi up` again")

    def _broken_promise(self, unit: Unit, zone: str) -> str | None:
        count = int(self._wish["gpu_count"])
        for pod in unit.pods:
            if pod.gpu is not None and pod.gpu.count < count:
                return f"has {pod.gpu.count} GPU(s) in a node, and {count} were promised"
            if pod.dataCenterId is not None and not plan.is_in(pod.dataCenterId, zone):
                return f"is in {pod.dataCenterId}, and {zone} was asked for"
            if pod.cudaVersion is not None and _number(pod.cudaVersion) < _number(plan.CUDA):
                return f"has a host whose driver runs CUDA {pod.cudaVersion}, and {plan.CUDA} is needed"
        return None

    def _with_token(self, token: str) -> str | None:
        """Id of what bears it and lives, the whole of it."""
        for unit in units(self._client):
            told = label.parse(unit.name)
            is_it = told is not None and told.token == token and label.is_ours(unit.name, self._deployment)
            if is_it and all(machine.lives for machine in self._machines(unit)):
                return unit.id
        return None

    def _machines(self, unit: Unit) -> list[Machine]:
        told = label.parse(unit.name)
        zone = told.zone if told else plan.ANYWHERE
        if unit.kind == "pods":
            (pod,) = unit.pods
            node = told.node if told else pod.id
            # There is one node, which reaches itself so.
            return [_machine(pod, id_=pod.id, name=node, zone=zone, private_address="127.0.0.1")]
        by_rank = {pod.cluster.rank: pod for pod in unit.pods if pod.cluster is not None}
        ranks = range(unit.cluster.compute.podCount) if unit.cluster else sorted(r for r in by_rank if r is not None)
        return [self._member(unit, rank, by_rank.get(rank), zone) for rank in ranks]

    def _member(self, unit: Unit, rank: int, pod: Pod | None, zone: str) -> Machine:
        id_, name = f"{unit.id}/{rank}", f"node-{rank}"
        if pod is not None:
            address = (pod.cluster.ip if pod.cluster else None) or ""
            return _machine(pod, id_=id_, name=name, zone=zone, private_address=address, is_inner=rank > 0)
        late = unit.cluster is not None and self._now() - unit.cluster.created_at > timedelta(seconds=BOOT_DEADLINE_S)
        fault = ProviderError(
            f"{name} ({id_}) has no pod of RunPod's any more: run `pulumi up`, which makes the cluster anew"
        )
        return Machine(
            id=id_, name=name, zone=zone, state="stopped" if late else "starting", fault=fault if late else None
        )


def end(
    client: RunPod,
    ends: Mapping[str, Kind],
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Returns when all are gone, as RunPod itself says; those that aren't there are."""

    def living(told: Sequence[str]) -> dict[str, str]:
        return {
            each.id: f"{each.kind[:-1]} {each.id} is {', '.join(sorted({pod.status for pod in each.pods})) or 'there'}"
            for each in units(client)
            if each.id in told and each.lives
        }

    def tell(id_: str) -> None:
        with contextlib.suppress(NotThereError):
            client.delete(ends[id_], id_)

    end_each(
        ends,
        tell=tell,
        living=living,
        deadline_s=_END_DEADLINE_S,
        cloud="RunPod",
        console="console.runpod.io",
        sleep=sleep,
        clock=clock,
    )


def _machine(pod: Pod, *, id_: str, name: str, zone: str, private_address: str, is_inner: bool = False) -> Machine:
    """`is_inner`: it is reached through the head, so that it may have no address outside."""
    state = _STATES[pod.status]
    direct = pod.ssh.direct
    if state == "running" and direct is None and not is_inner:
        state = "starting"
    fault = None
    if state == "stopped":
        fault = ProviderError(
            f"{name} ({id_}) is {pod.status} at RunPod: its container ended, or the account has no credit left "
            "(console.runpod.io shows its logs); run `pulumi up` for another"
        )
    return Machine(
        id=id_,
        name=name,
        zone=zone,
        state=state,
        private_address=private_address,
        public_address=direct.host if direct else "",
        public_port=direct.port if direct else 22,
        fault=fault,
    )


def _number(version: str) -> tuple[float, ...]:
    """ "12.8" to (12, 8); one that can't be read is as old as can be."""
    try:
        return tuple(int(part) for part in version.split("."))
    except ValueError:
        return (-math.inf,)
