"""The stand-in for Lambda's Cloud API (version 1.8.3 as published): state, refusals, faults on order, and the bill.

Does: the calls that infra/providers/lambda_cloud makes, with the published limits of names, tags and user data, keys
and rulesets that must exist, capacity by region, the rate limits where a test asks for them, instances that are seen
late, boot for some looks and end for some looks, answers that never come. Refuses any other path, field and type.
Can't: file systems, restart, audit events, images by id. The bill counts from launch to the end of termination, as
seconds by `clock`, whether or not the machine is switched off.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]
KEY = "lambda-test-key"
REGIONS = ("us-east-1", "us-west-1", "us-west-2", "europe-central-1")
TYPES: dict[str, tuple[str, int, int, int, int, int]] = {
    # description, GPUs, vCPUs, memory, storage (GiB), cents an hour; in Lambda's form, figures for tests
    "gpu_1x_a10": ("A10 (24 GB PCIe)", 1, 30, 200, 1400, 75),
    "gpu_1x_gh200": ("GH200 (96 GB)", 1, 64, 432, 4096, 149),
    "gpu_1x_h100_pcie": ("H100 (80 GB PCIe)", 1, 26, 200, 1024, 249),
    "gpu_1x_h100_sxm5": ("H100 (80 GB SXM5)", 1, 26, 225, 2816, 329),
    "gpu_8x_a100_80gb_sxm4": ("A100 (80 GB SXM4)", 8, 240, 1800, 19456, 1432),
    "gpu_8x_h100_sxm5": ("H100 (80 GB SXM5)", 8, 208, 1800, 22528, 2392),
}
_TAG_KEY = re.compile(r"[a-z][a-z0-9-:]+")
_HOSTNAME = re.compile(r"[a-z0-9][0-9a-z-]{0,62}")
_LAUNCH_FIELDS = {"region_name": str, "instance_type_name": str, "ssh_key_names": list, "name": str, "hostname": str}
_LAUNCH_FIELDS |= {"user_data": str, "tags": list, "firewall_rulesets": list, "image": dict}


class Refused(Exception):
    def __init__(self, status: int, code: str, message: str = "No.") -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass
class Made:
    """One instance."""

    told: Body
    """As the API tells it."""
    request: Body
    since: float
    boots: int
    """Looks until it is active."""
    unseen: int
    ends: int = -1
    """Looks until it has ended; -1: nobody asked."""
    until: float | None = None


@dataclass
class Fault:
    method: str
    path: re.Pattern[str]
    times: int
    status: int
    body: bytes
    executes: bool
    """Whether the call is carried out before the fault."""
    headers: dict[str, str] = field(default_factory=dict)


class StandIn:
    """One account. All of it may be looked at and changed by a test while `with` lasts."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.key = KEY
        self.capacity: dict[tuple[str, str], int] = {("us-east-1", name): 8 for name in TYPES}
        self.quota = 100
        self.boots, self.unseen, self.ends = 1, 0, 1
        self.launch_every_s = 0.0
        self.drops_tags = False
        self.instances: dict[str, Made] = {}
        self.keys: dict[str, Body] = {}
        self.rulesets: dict[str, Body] = {}
        self.global_rules: list[Body] = []
        self.calls: list[tuple[str, str]] = []
        self.faults: list[Fault] = []
        self._last_launch = -1e9
        self._lock = threading.RLock()
        self._hang = threading.Event()
        self._hanging = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True

    def __enter__(self) -> StandIn:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._hang.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def env(self) -> dict[str, str]:
        url = f"http://127.0.0.1:{self._server.server_port}"
        return {"LAMBDA_API_KEY": KEY, "LAMBDA_CLOUD_BASE_URL": url}

    # -- for tests ----------------------------------------------------------------------------------------------------

    def fail(
        self, method: str, path: str, *, status: int = 500, code: str = "global/internal-error", times: int = 1,
        body: bytes | None = None, executes: bool = False, **headers: str,
    ) -> None:  # fmt: skip
        """The next `times` such calls are answered so; status 0 is a connection that closes without an answer."""
        if body is None:
            body = json.dumps({"error": {"code": code, "message": "As ordered."}}).encode()
        self.faults.append(Fault(method, re.compile(path), times, status, body, executes, headers))

    def hang(self, path: str, *, executes: bool) -> None:
        """The next such POST isn't answered, until the stand-in goes."""
        self._hanging.clear()
        self.faults.append(Fault("POST", re.compile(path), 1, -1, b"", executes))

    def wait_until_hanging(self) -> None:
        assert self._hanging.wait(timeout=120), "no call came to hang"

    def billing(self) -> list[str]:
        """Ids of what bills now."""
        return [id_ for id_, made in self.instances.items() if made.until is None]

    def bill(self) -> float:
        """Dollars so far."""
        now = self.clock()
        return sum(
            ((now if made.until is None else made.until) - made.since) / 3600
            * made.told["instance_type"]["price_cents_per_hour"] / 100
            for made in self.instances.values()
        )  # fmt: skip

    def preempt(self, id_: str) -> None:
        made = self.instances[id_]
        made.told["status"], made.until = "preempted", self.clock()

    # -- the API ------------------------------------------------------------------------------------------------------

    def answer(self, method: str, path: str, authorization: str, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        """Status (0: close without an answer), body, headers."""
        with self._lock:
            self.calls.append((method, path))
            fault = next((f for f in self.faults if f.method == method and f.path.fullmatch(path)), None)
            if fault is not None:
                fault.times -= 1
                if fault.times == 0:
                    self.faults.remove(fault)
                if fault.executes:
                    self._done(method, path, authorization, body)
            else:
                status, told = self._done(method, path, authorization, body)
                return status, json.dumps(told).encode(), {}
        if fault.status == -1:
            self._hanging.set()
            self._hang.wait()
            return 0, b"", {}
        return fault.status, fault.body, fault.headers

    def _done(self, method: str, path: str, authorization: str, raw: bytes) -> tuple[int, Body]:
        try:
            if authorization != f"Bearer {self.key}":
                raise Refused(401, "global/invalid-api-key", "API key was invalid, expired, or deleted.")
            if not path.startswith("/api/v1/"):
                raise Refused(404, "global/not-found", f"no such path: {path}")
            body = json.loads(raw) if raw else {}
            return 200, {"data": self._route(method, path.removeprefix("/api/v1"), body)}
        except Refused as error:
            return error.status, {"error": {"code": error.code, "message": str(error)}}

    def _route(self, method: str, path: str, body: Body) -> Any:
        head, _, id_ = path.strip("/").partition("/")
        match method, head, id_:
            case "GET", "instance-types", "":
                return self._types()
            case "GET", "images", "":
                return [_image(family, region) for family in ("lambda-stack-24-04", "ubuntu-lts") for region in REGIONS]
            case "GET", "instances", "":
                return [self._seen(made) for made in list(self.instances.values()) if self._shows(made)]
            case "GET", "instances", _:
                if id_ not in self.instances:
                    raise Refused(404, "global/object-does-not-exist", "Specified instance does not exist.")
                return self._seen(self.instances[id_])
            case "POST", "instance-operations", "launch":
                return {"instance_ids": [self._launch(body)]}
            case "POST", "instance-operations", "terminate":
                return {"terminated_instances": [self._terminate(each) for each in body["instance_ids"]]}
            case "GET", "ssh-keys", "":
                return list(self.keys.values())
            case "POST", "ssh-keys", "":
                _only(body, {"name": str, "public_key": str})
                return self._kept(self.keys, {"name": body["name"], "public_key": body["public_key"]})
            case "DELETE", "ssh-keys", _:
                self.keys.pop(id_, None)
                return {}
            case "GET", "firewall-rulesets", "":
                return list(self.rulesets.values())
            case "GET", "firewall-rulesets", "global":
                return {"id": "global", "name": "Global Firewall Rules", "rules": self.global_rules}
            case "POST", "firewall-rulesets", "":
                _only(body, {"name": str, "region": str, "rules": list})
                if body["region"] not in REGIONS:
                    raise Refused(400, "global/invalid-parameters", f"no region {body['region']}")
                _rules(body["rules"])
                region = {"name": body["region"], "description": "somewhere"}
                made = {"name": body["name"], "region": region, "rules": body["rules"]}
                return self._kept(self.rulesets, {**made, "created": "2026-12-03T00:00:00Z", "instance_ids": []})
            case "PATCH", "firewall-rulesets", _:
                _rules(body["rules"])
                self._ruleset(id_)["rules"] = body["rules"]
                return self.rulesets[id_]
            case "DELETE", "firewall-rulesets", _:
                self._ruleset(id_)
                if any({"id": id_} in made.request["firewall_rulesets"] for made in self._living()):
                    raise Refused(400, "firewall-rulesets/firewall-ruleset-in-use", "In use by one or more instances.")
                return self.rulesets.pop(id_) and {}
        raise Refused(404, "global/not-found", f"the stand-in doesn't serve {method} {path}")

    def _types(self) -> Body:
        return {
            name: {
                "instance_type": _type(name),
                "regions_with_capacity_available": [
                    {"name": region, "description": "somewhere"}
                    for region in REGIONS
                    if self.capacity.get((region, name), 0) > 0
                ],
            }
            for name in TYPES
        }

    def _launch(self, body: Body) -> str:
        now = self.clock()
        if now - self._last_launch < self.launch_every_s:
            raise Refused(429, "global/rate-limit", "Too many requests.")
        self._last_launch = now
        _only(body, _LAUNCH_FIELDS, required=("region_name", "instance_type_name", "ssh_key_names"))
        region, kind = body["region_name"], body["instance_type_name"]
        if region not in REGIONS or kind not in TYPES or len(body["ssh_key_names"]) != 1:
            raise Refused(400, "global/invalid-parameters", "Invalid request data.")
        if body["ssh_key_names"][0] not in [key["name"] for key in self.keys.values()]:
            raise Refused(404, "global/object-does-not-exist", "SSH key")
        for ruleset in body.get("firewall_rulesets", []):
            if self._ruleset(ruleset["id"])["region"]["name"] != region:
                raise Refused(400, "global/invalid-parameters", "The ruleset is in another region.")
        for tag in body.get("tags", []):
            if not _TAG_KEY.fullmatch(tag["key"]) or len(tag["key"]) > 55 or len(tag["value"]) > 128:
                raise Refused(400, "global/invalid-parameters", f"tag {tag}")
        if len(body.get("name", "")) > 64 or not _HOSTNAME.fullmatch(body.get("hostname", "a")):
            raise Refused(400, "global/invalid-parameters", "name or hostname")
        if len(body.get("user_data", "")) > 1_000_000:
            raise Refused(400, "global/invalid-parameters", "user_data is too long")
        if len(self._living()) >= self.quota:
            raise Refused(400, "global/quota-exceeded", "Quota exceeded.")
        if self.capacity.get((region, kind), 0) < 1:
            raise Refused(400, "instance-operations/launch/insufficient-capacity", "Not enough capacity.")
        self.capacity[region, kind] -= 1
        id_, place = secrets.token_hex(16), len(self.instances) + 1
        told = {
            "id": id_,
            "name": body.get("name", ""),
            "ip": f"198.51.100.{place}",
            "private_ip": f"10.19.0.{place}",
            "status": "booting",
            "ssh_key_names": body["ssh_key_names"],
            "file_system_names": [],
            "region": {"name": region, "description": "somewhere"},
            "instance_type": _type(kind),
            "hostname": body.get("hostname", ""),
            "tags": [] if self.drops_tags else body.get("tags", []),
            "actions": {},
        }
        self.instances[id_] = Made(told=told, request=body, since=now, boots=self.boots, unseen=self.unseen)
        return id_

    def _terminate(self, id_: str) -> Body:
        if id_ not in self.instances or self.instances[id_].told["status"] == "terminated":
            raise Refused(404, "global/object-does-not-exist", "Specified instance does not exist.")
        made = self.instances[id_]
        if made.ends < 0:
            made.told["status"], made.ends = "terminating", self.ends
        return made.told

    def _seen(self, made: Made) -> Body:
        """As it is told now; a look lets time pass."""
        told = dict(made.told)
        if told["status"] == "booting":
            del told["ip"], told["private_ip"]
            made.boots -= 1
            if made.boots <= 0:
                made.told["status"] = "active"
        if told["status"] == "terminating":
            made.ends -= 1
            if made.ends <= 0:
                made.told["status"], made.until = "terminated", self.clock()
                kind = made.told["instance_type"]["name"]
                place = made.told["region"]["name"], kind
                self.capacity[place] = self.capacity.get(place, 0) + 1
        return told

    def _shows(self, made: Made) -> bool:
        made.unseen -= 1
        return made.unseen < 0 and made.told["status"] != "terminated"

    def _living(self) -> list[Made]:
        return [made for made in self.instances.values() if made.until is None]

    def _ruleset(self, id_: str) -> Body:
        if id_ not in self.rulesets:
            raise Refused(404, "global/object-does-not-exist", "Firewall ruleset")
        return self.rulesets[id_]

    def _kept(self, where: dict[str, Body], body: Body) -> Body:
        id_ = secrets.token_hex(16)
        where[id_] = {"id": id_, **body}
        return where[id_]


def _type(name: str) -> Body:
    description, gpus, vcpus, memory, storage, cents = TYPES[name]
    specs = {"vcpus": vcpus, "memory_gib": memory, "storage_gib": storage, "gpus": gpus}
    told = {"name": name, "description": f"{gpus}x {description}", "gpu_description": description}
    return {**told, "price_cents_per_hour": cents, "specs": specs}


def _image(family: str, region: str) -> Body:
    place = {"name": region, "description": "somewhere"}
    return {"id": f"{family}-{region}", "family": family, "architecture": "x86_64", "region": place}


def _only(body: Body, fields: dict[str, type], required: tuple[str, ...] | None = None) -> None:
    for key, value in body.items():
        if key not in fields or not isinstance(value, fields[key]):
            raise Refused(400, "global/invalid-parameters", f"{key} is unknown or of a wrong type")
    for key in fields if required is None else required:
        if key not in body:
            raise Refused(400, "global/invalid-parameters", f"{key} is missing")


def _rules(rules: list[Body]) -> None:
    for rule in rules:
        _only(rule, {"protocol": str, "port_range": list, "source_network": str, "description": str},
              required=("protocol", "source_network", "description"))  # fmt: skip
        if ("port_range" in rule) == (rule["protocol"] == "icmp") or ":" in rule["source_network"]:
            raise Refused(400, "global/invalid-parameters", f"rule {rule}")


def _handler(stand_in: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, content, headers = stand_in.answer(
                self.command, self.path, self.headers.get("Authorization", ""), body
            )
            if status == 0:
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_DELETE = _any

        def log_message(self, *_: object) -> None:
            """Nothing: tests look at `calls`."""

    return Handler
