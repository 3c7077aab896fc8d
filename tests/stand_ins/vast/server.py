"""The stand-in for Vast.ai's API (as published, 2026-08): a market, state, refusals, faults on order, and the bill.

Does: search, create, list (version 1, by pages) and destroy, with the published schemas and limits (rules.py); offers
that others take, machines that aren't as promised, bids that are too low and leave a stopped instance, outbidding,
instances that are seen late, start for some looks and go for some looks, the rate limits where a test asks for them.
Refuses any other path, field and type. Can't: templates, volumes, overlays, VMs, logs, restarts.
The bill, as the pricing page says: the disk from the create to the end, the GPUs while the container runs, by `clock`.
"""

from __future__ import annotations

import base64
import itertools
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.stand_ins.rest_server import RestServer
from tests.stand_ins.vast import rules
from tests.stand_ins.vast.rules import Body, Refused

KEY = "vast-test-key"
PAGE = 25
_QUERY = ("limit", "after_token", "order_by", "select_cols", "select_filters")
_BUSY = b"API requests too frequent"


@dataclass
class Made:
    """One instance."""

    told: Body
    """As the API tells it."""
    request: Body
    since: float
    boots: int
    """Looks until it runs."""
    unseen: int
    gpus_since: float | None = None
    gpus_s: float = 0.0
    """Seconds charged before `gpus_since`."""
    ends: int = -1
    """Looks until it is gone; -1: nobody asked."""
    until: float | None = None


class StandIn(RestServer):
    """One account, and the market. All of it may be looked at and changed by a test while `with` lasts."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, address: str = "127.0.0.1") -> None:
        super().__init__(address=address)
        self.clock = clock
        self.key = KEY
        self.offers: dict[int, Body] = {}
        self.instances: dict[str, Made] = {}
        self.boots, self.unseen, self.ends = 1, 0, 1
        self.taken: set[int] = set()
        """Offers that somebody takes between a search and a create."""
        self.breaks_promises: Body = {}
        """What instances that are made from now on have in place of what was offered."""
        self.too_often = 0
        """Calls that came before their time."""
        self.every_s: dict[str, float] = {}
        """Least interval between calls of "list", "create", "destroy", "search"."""
        self.on_start: Callable[[str, Body], tuple[str, int]] | None = None
        """A new instance's id and request to where its port 22 is reached."""
        self.on_end: Callable[[str], None] | None = None
        self._last: dict[str, float] = {}
        self._ids = itertools.count(7_000_001)
        self._own = itertools.count(1)

    @property
    def env(self) -> dict[str, str]:
        return {"VAST_API_KEY": KEY, "VAST_URL": self.url}

    # -- for tests ----------------------------------------------------------------------------------------------------

    def offer(self, **changes: Any) -> int:
        """Adds one of 8 H100 in a verified datacenter, but for `changes`; its id."""
        id_ = next(self._ids)
        self.offers[id_] = {**_OFFER, "id": id_, "ask_contract_id": id_, "machine_id": id_ % 1000, **changes}
        return id_

    def billing(self) -> list[str]:
        """Ids of what bills now, if it were for its disk alone."""
        return [id_ for id_, made in self.instances.items() if made.until is None]

    def bill(self) -> float:
        """Dollars so far."""
        now, total = self.clock(), 0.0
        for made in self.instances.values():
            gpus_s = made.gpus_s + (0.0 if made.gpus_since is None else now - made.gpus_since)
            disk_s = (now if made.until is None else made.until) - made.since
            total += gpus_s / 3600 * made.told["dph_base"] + disk_s / 3600 * made.told["storage_total_cost"]
        return total

    def stop(self, id_: str) -> None:
        """Outbid, or out of credit: nothing of it runs, and the disk stays."""
        made = self.instances[id_]
        self._stop_gpus(made)
        made.told |= {"cur_state": "stopped", "next_state": "stopped", "intended_status": "stopped"}
        made.told |= {"actual_status": "exited", "ports": None}

    # -- the API ------------------------------------------------------------------------------------------------------

    def perform(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Any]:
        try:
            return 200, self._route(method, target, headers, json.loads(body) if body else {})
        except _TooOften:
            return 429, _BUSY
        except Refused as error:
            return error.status, error.body

    def _route(self, method: str, target: str, headers: Mapping[str, str], body: Body) -> Body:
        url = urlsplit(target)
        if not self._may(headers.get("Authorization", ""), method, url.path):
            status = 404 if url.path == "/api/v0/bundles/" else 401  # so published
            raise Refused(status, "auth_error", "Invalid user key")
        match method, url.path.strip("/").split("/"):
            case "POST", ["api", "v0", "bundles"]:
                self._in_time("search")
                return {"offers": rules.search(body, self.offers)}
            case "GET", ["api", "v1", "instances"]:
                self._in_time("list")
                return self._page(dict(parse_qsl(url.query)))
            case "PUT", ["api", "v0", "asks", offer]:
                self._in_time("create")
                return self._create(int(offer), body)
            case "DELETE", ["api", "v0", "instances", id_]:
                self._in_time("destroy")
                return self._destroy(id_, body)
        raise Refused(404, "not_found", f"the stand-in doesn't serve {method} {url.path}")

    def _may(self, authorization: str, method: str, path: str) -> bool:
        """The account's key may do all, an instance's own may end that instance."""
        key = authorization.removeprefix("Bearer ")
        own = next((id_ for id_ in self.instances if key == f"instance-key-{id_}"), None)
        return key == self.key or (own is not None and (method, path) == ("DELETE", f"/api/v0/instances/{own}/"))

    def _in_time(self, endpoint: str) -> None:
        now, last = self.clock(), self._last.get(endpoint, -1e9)
        if now - last < self.every_s.get(endpoint, 0.0):
            self.too_often += 1
            raise _TooOften
        self._last[endpoint] = now

    def _create(self, id_: int, body: Body) -> Body:
        rules.check_create(body)
        offer = self.offers.get(id_)
        if offer is None or not offer["rentable"]:
            raise Refused(
                404, "invalid_args", f"error 404/3603: no_such_ask Instance type by id {id_} is not available.",
                ask_id=id_,
            )  # fmt: skip
        if id_ in self.taken:
            offer["rentable"] = False
            raise Refused(
                410, "no_such_ask", f"error 410/3907: no_such_ask Instance type {id_} is no longer available.",
                ask_id=id_,
            )  # fmt: skip
        price = body.get("price")
        made = self._made(offer, body, price)
        if price is not None and price < offer["min_bid"]:
            self.stop(made)
            raise Refused(400, "invalid_price", "The bid is below the lowest one.", new_contract=int(made))
        offer["rentable"] = False
        return {"success": True, "new_contract": int(made), "instance_api_key": f"instance-key-{made}"}

    def _made(self, offer: Body, body: Body, price: float | None) -> str:
        id_ = str(next(self._ids))
        disk = body.get("disk", 8)
        base = offer["dph_base"] if price is None else price
        storage = disk * offer["storage_cost"] / 720
        kept = ("gpu_name", "num_gpus", "geolocation", "machine_id", "host_id", "verification", "min_bid", "gpu_ram")
        told = {
            **{key: offer[key] for key in kept},
            "id": int(id_),
            "label": body.get("label"),
            "actual_status": None,
            "cur_state": "running",
            "next_state": "running",
            "intended_status": "running",
            "status_msg": None,
            "image_uuid": body["image"],
            "image_runtype": body.get("runtype", "ssh"),
            "image_args": body.get("args", []),
            "extra_env": [list(pair) for pair in body.get("env", {}).items()],
            "onstart": body.get("onstart"),
            "public_ipaddr": None,
            "ports": None,
            "is_bid": price is not None,
            "dph_base": base,
            "dph_total": base + storage,
            "storage_cost": offer["storage_cost"],
            "storage_total_cost": storage,
            "disk_space": float(disk),
            "_offer": offer["id"],
            **self.breaks_promises,
        }
        self.instances[id_] = Made(told=told, request=body, since=self.clock(), boots=self.boots, unseen=self.unseen)
        return id_

    def _page(self, query: dict[str, str]) -> Body:
        if unknown := set(query) - set(_QUERY):
            raise Refused(400, "invalid_request", f"unknown: {unknown}")
        limit = int(query.get("limit", PAGE))
        limit = 5 if limit <= 0 else min(limit, PAGE)
        after = _opened(query["after_token"]) if "after_token" in query else 0
        if any(each["col"] not in ("id", "label") for each in json.loads(query.get("order_by", "[]"))):
            raise Refused(400, "invalid_request", "Error in query parameters: order_by")
        first = after == 0
        seen = [told for made in list(self.instances.values()) if (told := self._seen(made, lets_pass=first))]
        chosen = rules.select(json.loads(query.get("select_filters", "{}")), seen)
        rest = [each for each in sorted(chosen, key=lambda each: int(each["id"])) if int(each["id"]) > after]
        page = rest[:limit]
        counts: dict[str, int] = {}
        for each in chosen:
            counts[each["label"] or ""] = counts.get(each["label"] or "", 0) + 1
        return {
            "success": True,
            "instances_found": len(page),
            "total_instances": len(chosen),
            "label_counts": counts,
            "next_token": _token(page[-1]["id"]) if len(rest) > limit else None,
            "instances": page,
        }

    def _seen(self, made: Made, *, lets_pass: bool) -> Body | None:
        """As it is told now; a look lets time pass, however many pages it has."""
        if made.until is not None:
            return None
        if lets_pass:
            made.unseen -= 1
            self._go_on(made)
        if made.until is not None or made.unseen >= 0:
            return None
        return {key: value for key, value in made.told.items() if not key.startswith("_")}

    def _go_on(self, made: Made) -> None:
        if made.ends >= 0:
            made.ends -= 1
            if made.ends < 0:
                self._end(made)
        elif made.told["intended_status"] == "running" and made.told["actual_status"] in (None, "loading"):
            made.boots -= 1
            made.told["actual_status"] = "loading"
            if made.boots < 0:
                self._run(made)

    def _run(self, made: Made) -> None:
        id_, number = str(made.told["id"]), next(self._own)
        host, port = f"198.51.100.{number}", 40000 + number
        if self.on_start is not None:
            host, port = self.on_start(id_, made.request)
        ports = [name for name in made.request.get("env", {}) if name.startswith("-p ")]
        mapped = {f"{name.rpartition(':')[2]}/tcp": [{"HostIp": "::", "HostPort": str(port)}] for name in ports}
        made.told |= {"actual_status": "running", "public_ipaddr": f"{host}\n", "ports": mapped}
        made.told["status_msg"] = f"success, running {made.told['image_uuid']}"
        made.gpus_since = self.clock()

    def _destroy(self, id_: str, body: Body) -> Body:
        if body:
            raise Refused(400, "invalid_args", "a destroy has no body")
        made = self.instances.get(id_)
        if made is None or made.until is not None:
            raise Refused(404, "not_found", "Instance not found")
        if made.ends < 0:
            made.ends = self.ends - 1
            if made.ends < 0:
                self._end(made)
        return {"success": True, "msg": "Instance destroyed successfully"}

    def _end(self, made: Made) -> None:
        self._stop_gpus(made)
        made.until = self.clock()
        self.offers[made.told["_offer"]]["rentable"] = True
        if self.on_end is not None:
            self.on_end(str(made.told["id"]))

    def _stop_gpus(self, made: Made) -> None:
        if made.gpus_since is not None:
            made.gpus_s, made.gpus_since = made.gpus_s + self.clock() - made.gpus_since, None


class _TooOften(Exception):
    """A 429, whose body is plain text."""


def _token(id_: int) -> str:
    return base64.b64encode(json.dumps({"values": {"id": id_}}).encode()).decode()


def _opened(token: str) -> int:
    try:
        return int(json.loads(base64.b64decode(token))["values"]["id"])
    except (ValueError, KeyError):
        raise Refused(400, "invalid_token", "after_token") from None


_OFFER: Body = {
    # The fields of the published example, with figures for tests.
    "bundle_id": 987654321,
    "bw_nvlink": 478.1,
    "compute_cap": 900,
    "cpu_arch": "amd64",
    "cpu_cores": 192,
    "cpu_cores_effective": 192.0,
    "cpu_ram": 2_000_000,
    "cuda_max_good": 13.0,
    "direct_port_count": 500,
    "disk_bw": 4000.0,
    "disk_space": 4000.0,
    "dph_base": 16.0,
    "duration": 30 * 86400.0,
    "external": None,
    "geolocation": "Iowa, US",
    "gpu_arch": "nvidia",
    "gpu_name": "H100 SXM",
    "gpu_ram": 81559,
    "host_id": 55,
    "hosting_type": 1,
    "inet_down": 5000.0,
    "inet_down_cost": 0.002,
    "inet_up": 4000.0,
    "inet_up_cost": 0.004,
    "min_bid": 8.0,
    "num_gpus": 8,
    "public_ipaddr": "198.51.100.1",
    "reliability": 0.998,
    "reliability2": 0.998,
    "rentable": True,
    "rented": False,
    "score": 500.0,
    "static_ip": True,
    "storage_cost": 0.18,
    "verification": "verified",
    "vms_enabled": False,
    "cluster_id": None,
}
