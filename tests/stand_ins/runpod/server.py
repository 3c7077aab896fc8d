"""The stand-in for RunPod's API, version 2 (as published, 2026-08): state, refusals, faults on order, and the bill.

Does: the catalogue, pods, clusters and network volumes with the published schemas (rules.py), the one GraphQL query
that tells what GPUs cost in clusters; capacity that runs out, machines that aren't as promised, pods that are seen
late, start for some looks and go for some looks, the published rate limit where a test asks for it. Refuses any other
path, field and type. Can't: templates, CPU pods, community cloud, actions, logs, restarts.
The bill, as the pricing page says: GPUs and container disk from the create to the end (a pod that exited: nothing),
network volumes while they exist, by `clock`.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.stand_ins.rest_server import RestServer
from tests.stand_ins.runpod import rules
from tests.stand_ins.runpod.rules import Body, Refused

KEY = "runpod-test-key"
H100 = "NVIDIA H100 80GB HBM3"
CREATED = "2026-12-04T12:00:00Z"
_DISK_USD, _VOLUME_USD, _MONTH_S = 0.10, 0.07, 730 * 3600
_WINDOW_S = 60.0


@dataclass
class Type:
    """GPUs of one kind in RunPod's own data centers."""

    price: float = 2.69
    cluster_price: float | None = 3.0
    has_clusters: bool = True
    most: int = 8
    free: dict[str, int] = field(default_factory=dict)
    """Machines by data center."""


@dataclass
class Made:
    """One pod."""

    told: Body
    """As the API tells it. Keys with an underscore are the stand-in's own."""
    request: Body
    since: float
    boots: int
    """Looks until it runs."""
    unseen: int
    ends: int = -1
    """Looks until it is gone; -1: nobody asked."""
    until: float | None = None
    """When the bill stopped."""


@dataclass
class MadeVolume:
    told: Body
    since: float
    until: float | None = None


class StandIn(RestServer):
    """One account. All of it may be looked at and changed by a test while `with` lasts."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, address: str = "127.0.0.1") -> None:
        super().__init__(address=address)
        self.clock = clock
        self.key = KEY
        self.types: dict[str, Type] = {}
        self.pods: dict[str, Made] = {}
        self.clusters: dict[str, Body] = {}
        """As told, with the members under "_pods"."""
        self.volumes: dict[str, MadeVolume] = {}
        self.boots, self.unseen, self.ends = 1, 0, 1
        self.breaks_promises: Body = {}
        """What pods that are made from now on have in place of what was asked for."""
        self.most_calls: int | None = None
        """In a minute."""
        self.too_often = 0
        """Calls beyond."""
        self.on_start: Callable[[str, Body, int], tuple[str, int]] | None = None
        """A new pod's id, request and rank to where its port 22 is reached."""
        self.on_end: Callable[[str], None] | None = None
        self._came: list[float] = []
        self._ids = itertools.count(1)

    @property
    def env(self) -> dict[str, str]:
        return {"RUNPOD_API_KEY": KEY, "RUNPOD_API_URL": self.url}

    # -- for tests ----------------------------------------------------------------------------------------------------

    def stock(self, gpu: str = H100, *, machines: int = 8, center: str = "US-KS-2", **changes: Any) -> None:
        """So many machines of 8 GPUs are to be had there."""
        kind = self.types.setdefault(gpu, Type())
        kind.free[center] = machines
        for name, value in changes.items():
            setattr(kind, name, value)

    def billing(self) -> list[str]:
        """Ids of the pods that bill now, those of clusters too."""
        return [id_ for id_, made in self.pods.items() if made.until is None]

    def bill(self) -> float:
        """Dollars so far."""
        now, total = self.clock(), 0.0
        for made in self.pods.values():
            seconds = (now if made.until is None else made.until) - made.since
            total += seconds * (made.told["_rate"] / 3600 + made.told["disk"] * _DISK_USD / _MONTH_S)
        for volume in self.volumes.values():
            seconds = (now if volume.until is None else volume.until) - volume.since
            total += seconds * volume.told["size"] * _VOLUME_USD / _MONTH_S
        return total

    def exit(self, id_: str, status: str = "EXITED") -> None:
        """The container ended, or the account has no credit: nothing runs, nothing bills, and the pod stays."""
        made = self.pods[id_]
        made.told |= {"status": status, "cost": 0.0, "ssh": {"proxy": None, "direct": None}, "runtime": None}
        made.until = self.clock()

    # -- the API ------------------------------------------------------------------------------------------------------

    def perform(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Any]:
        try:
            return self._route(method, target, headers, json.loads(body) if body else {})
        except Refused as error:
            return error.status, error.body

    def _route(self, method: str, target: str, headers: Mapping[str, str], body: Body) -> tuple[int, Any]:
        url = urlsplit(target)
        if not self._may(headers.get("Authorization", ""), method, url.path):
            raise Refused(401, "invalid or missing API key")
        self._in_time()
        query = dict(parse_qsl(url.query))
        match method, url.path.strip("/").split("/"):
            case "POST", ["graphql"]:
                return 200, self._graph(body)
            case "GET", ["v2", "catalog", "gpus"]:
                rules.check_catalogue(query)
                return 200, {"gpus": [self._type(id_, kind, query) for id_, kind in self.types.items()]}
            case "GET", ["v2", "pods"]:
                return 200, {"pods": self._look(query.get("includeClusterPods") == "true")}
            case "GET", ["v2", "clusters"]:
                return 200, {"clusters": self._clusters()}
            case "POST", ["v2", "pods"]:
                rules.check("pods", body)
                return 201, _public(self._create_pod(body).told)
            case "POST", ["v2", "clusters"]:
                rules.check("clusters", body)
                return 201, self._create_cluster(body)
            case "DELETE", ["v2", "pods", id_]:
                return self._delete_pod(id_)
            case "DELETE", ["v2", "clusters", id_]:
                return self._delete_cluster(id_)
            case "GET", ["v2", "network-volumes"]:
                return 200, {"networkVolumes": [v.told for v in self.volumes.values() if v.until is None]}
            case "POST", ["v2", "network-volumes"]:
                rules.check("network-volumes", body)
                return 201, self._create_volume(body)
            case "PATCH", ["v2", "network-volumes", id_]:
                rules.check("growth", body)
                return 200, self._grow_volume(id_, body)
            case "DELETE", ["v2", "network-volumes", id_]:
                return self._delete_volume(id_)
        raise Refused(404, f"the stand-in doesn't serve {method} {url.path}")

    def _may(self, authorization: str, method: str, path: str) -> bool:
        """The account's key may do all, a pod's own may end that pod."""
        key = authorization.removeprefix("Bearer ")
        own = next((id_ for id_ in self.pods if key == f"pod-key-{id_}"), None)
        return key == self.key or (own is not None and (method, path) == ("DELETE", f"/v2/pods/{own}"))

    def _in_time(self) -> None:
        if self.most_calls is None:
            return
        now = self.clock()
        self._came = [at for at in self._came if now - at < _WINDOW_S]
        if len(self._came) >= self.most_calls:
            self.too_often += 1
            raise Refused(429, "rate limit exceeded")
        self._came.append(now)

    def _graph(self, body: Body) -> Body:
        if not rules.is_known_query(body):
            return {"errors": [{"message": "Cannot query such a field"}]}
        return {"data": {"gpuTypes": [{"id": id_, "clusterPrice": t.cluster_price} for id_, t in self.types.items()]}}

    def _type(self, id_: str, kind: Type, query: dict[str, str]) -> Body:
        told: Body = {
            "id": id_,
            "name": id_.removeprefix("NVIDIA "),
            "pool": None,
            "manufacturer": "NVIDIA",
            "memory": 80,
            "secure": kind.most > 0,
            "community": False,
            "price": {"secure": kind.price, "community": 0},
            "maxCount": {"secure": kind.most, "community": 0},
        }
        if query.get("include") != "AVAILABILITY":
            return told
        fits = int(query.get("count", "1")) <= kind.most and (query["product"] == "POD" or kind.has_clusters)
        centers = [
            {"id": center, "name": center.title(), "availability": "HIGH" if free >= 4 else "LOW"}
            for center, free in kind.free.items()
            if free > 0 and fits
        ]
        told["availability"] = centers[0]["availability"] if centers else "NONE"
        if centers:
            told["dataCenters"] = centers
        return told

    def _take(self, gpu: str, count: int, machines: int, centers: list[str]) -> tuple[Type, str]:
        """A data center with so many, which are taken."""
        kind = self.types.get(gpu)
        if kind is None:
            raise Refused(400, f"unknown GPU type {gpu}")
        if count > kind.most:
            raise Refused(400, f"gpu count {count} exceeds the maximum {kind.most}")
        for center in centers or list(kind.free):
            if kind.free.get(center, 0) >= machines:
                kind.free[center] -= machines
                return kind, center
        raise Refused(400, "There are no longer any instances available with the requested specifications.")

    def _create_pod(self, body: Body) -> Made:
        gpu = body["gpu"]
        kind, center = self._take(gpu["id"], gpu.get("count", 1), 1, self._centers(body))
        return self._made(body, gpu["id"], gpu.get("count", 1), kind.price, center)

    def _create_cluster(self, body: Body) -> Body:
        compute = body["compute"]
        gpu, count, pods = compute["gpuTypeId"], compute["gpuCountPerPod"], compute["podCount"]
        if gpu in self.types and not self.types[gpu].has_clusters:
            raise Refused(400, f"{gpu} isn't offered in clusters")
        kind, center = self._take(gpu, count, pods, self._centers(body))
        id_ = f"cluster{next(self._ids)}"
        members = []
        for rank in range(pods):
            made = self._made(body, gpu, count, kind.cluster_price or kind.price, center)
            made.told["cluster"] = {"id": id_, "rank": None}
            made.told["_rank"] = rank
            members.append(made.told["id"])
        told: Body = {"id": id_, "name": body["name"], "type": body["type"], "compute": compute, "createdAt": CREATED}
        self.clusters[id_] = {**told, "_pods": members, "_unseen": self.unseen}
        return {**told, "pods": {"total": 0, "byStatus": {}}}

    def _centers(self, body: Body) -> list[str]:
        mounts = body.get("mounts", {}).get("network", [])
        for mount in mounts:
            volume = self.volumes.get(mount["volumeId"])
            if volume is None or volume.until is not None:
                raise Refused(400, f"network volume {mount['volumeId']} not found")
            return [volume.told["dataCenter"]]
        return list(body.get("dataCenterIds", []))

    def _made(self, body: Body, gpu: str, count: int, rate: float, center: str) -> Made:
        id_ = f"pod{next(self._ids)}"
        told: Body = {
            "id": id_,
            "name": body["name"],
            "status": "PROVISIONING",
            "actions": ["stop", "terminate"],
            "image": body["image"],
            "args": body.get("args", ""),
            "disk": body.get("disk", 50),
            "mounts": body.get("mounts", {}),
            "ports": body.get("ports", []),
            "env": body.get("env", {}),
            "registry": None,
            "cloud": "SECURE",
            "gpu": {"id": gpu, "count": count},
            "dataCenterId": center,
            "cudaVersion": "13.0",
            "ssh": {"proxy": None, "direct": None},
            "template": None,
            "cost": round(rate * count, 4),
            "locked": False,
            "runtime": None,
            "createdAt": CREATED,
            "startedAt": None,
            "globalNetworking": {"enabled": False},
            "_rate": rate * count,
            "_gpu": gpu,
            "_center": center,
            **self.breaks_promises,
        }
        self.pods[id_] = Made(told=told, request=body, since=self.clock(), boots=self.boots, unseen=self.unseen)
        return self.pods[id_]

    def _look(self, with_members: bool) -> list[Body]:
        """As told now; a look lets time pass."""
        found = []
        for made in list(self.pods.values()):
            made.unseen -= 1
            self._go_on(made)
            if made.told["status"] != "GONE" and made.unseen < 0 and (with_members or "cluster" not in made.told):
                found.append(_public(made.told))
        return found

    def _go_on(self, made: Made) -> None:
        if made.ends >= 0:
            made.ends -= 1
            if made.ends < 0:
                self._end(made)
        elif made.told["status"] == "TERMINATED":
            made.told["status"] = "GONE"
        elif made.told["status"] in ("PROVISIONING", "STARTING"):
            made.boots -= 1
            made.told["status"] = "STARTING"
            rank = made.told.get("_rank")
            if rank is not None:
                made.told["cluster"] = {**made.told["cluster"], "rank": rank}
            if made.boots < 0:
                self._run(made, rank or 0)

    def _run(self, made: Made, rank: int) -> None:
        number = int(made.told["id"].removeprefix("pod"))
        host, port = f"198.51.100.{number}", 40000 + number
        if self.on_start is not None:
            host, port = self.on_start(made.told["id"], made.request, rank)
        direct = {"host": host, "port": port, "username": "root", "command": f"ssh root@{host} -p {port}"}
        is_open = "22/tcp" in made.request.get("ports", []) and rank == 0
        made.told |= {"status": "RUNNING", "ssh": {"proxy": None, "direct": direct if is_open else None}}
        if "cluster" in made.told:
            made.told["cluster"] = {**made.told["cluster"], "ip": f"10.65.0.{rank + 2}"}

    def _clusters(self) -> list[Body]:
        found = []
        for cluster in self.clusters.values():
            cluster["_unseen"] -= 1
            members = [self.pods[id_] for id_ in cluster["_pods"]]
            living = [each for each in members if each.told["status"] not in ("TERMINATED", "GONE")]
            if (not living and cluster.get("_deleted")) or cluster["_unseen"] >= 0:
                continue
            counts: dict[str, int] = {}
            for each in living:
                counts[each.told["status"]] = counts.get(each.told["status"], 0) + 1
            found.append({**_public(cluster), "pods": {"total": len(living), "byStatus": counts}})
        return found

    def _delete_pod(self, id_: str) -> tuple[int, Any]:
        made = self.pods.get(id_)
        if made is None or made.told["status"] in ("TERMINATED", "GONE"):
            raise Refused(404, "pod not found")
        if "cluster" in made.told:
            raise Refused(409, "the pod belongs to a cluster")
        self._begin_end(made)
        return 204, b""

    def _delete_cluster(self, id_: str) -> tuple[int, Any]:
        cluster = self.clusters.get(id_)
        if cluster is None or cluster.get("_deleted"):
            raise Refused(404, "cluster not found")
        cluster["_deleted"] = True
        for pod in cluster["_pods"]:
            if self.pods[pod].told["status"] not in ("TERMINATED", "GONE"):
                self._begin_end(self.pods[pod])
        return 204, b""

    def _begin_end(self, made: Made) -> None:
        if made.ends < 0:
            made.ends = self.ends - 1
            if made.ends < 0:
                self._end(made)

    def _end(self, made: Made) -> None:
        made.until = self.clock() if made.until is None else made.until
        made.told |= {"status": "TERMINATED", "cost": 0.0, "ssh": {"proxy": None, "direct": None}}
        self.types[made.told["_gpu"]].free[made.told["_center"]] += 1
        if self.on_end is not None:
            self.on_end(made.told["id"])

    def _create_volume(self, body: Body) -> Body:
        id_ = f"volume{next(self._ids)}"
        told = {"id": id_, "type": "STANDARD", **body}
        self.volumes[id_] = MadeVolume(told=told, since=self.clock())
        return told

    def _volume(self, id_: str) -> MadeVolume:
        volume = self.volumes.get(id_)
        if volume is None or volume.until is not None:
            raise Refused(404, "network volume not found")
        return volume

    def _grow_volume(self, id_: str, body: Body) -> Body:
        volume = self._volume(id_)
        if body.get("size", volume.told["size"]) < volume.told["size"]:
            raise Refused(400, "a network volume can't be reduced")
        volume.told |= body
        return volume.told

    def _delete_volume(self, id_: str) -> tuple[int, Any]:
        volume = self._volume(id_)
        for made in self.pods.values():
            mounts = made.told["mounts"].get("network", [])
            if made.told["status"] not in ("TERMINATED", "GONE") and any(each["volumeId"] == id_ for each in mounts):
                raise Refused(400, "the network volume is attached to a pod")
        volume.until = self.clock()
        return 204, b""


def _public(told: Body) -> Body:
    return {key: value for key, value in told.items() if not key.startswith("_")}
