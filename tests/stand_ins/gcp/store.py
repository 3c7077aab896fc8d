"""What exists in this double of Compute, and the operations that are under way.

Time is counted in reads: an operation has so many reads of itself or of its target to go, then its end takes effect.
`let_time_pass` ends them all and moves the clock by which maximum run durations are counted.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.stand_ins.gcp import catalogue
from tests.stand_ins.gcp.errors import GcpError, invalid, not_found

LINK = "https://www.googleapis.com/compute/v1/"
Body = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One collection: "instances", under zones/, regions/ or global/."""

    collection: str
    scope: str
    item: str
    schema: str


KINDS = {
    kind.collection: kind
    for kind in (
        Kind(collection="instances", scope="zones", item="instance", schema="Instance"),
        Kind(collection="disks", scope="zones", item="disk", schema="Disk"),
        Kind(collection="reservations", scope="zones", item="reservation", schema="Reservation"),
        Kind(collection="addresses", scope="regions", item="address", schema="Address"),
        Kind(collection="subnetworks", scope="regions", item="subnetwork", schema="Subnetwork"),
        Kind(collection="routers", scope="regions", item="router", schema="Router"),
        Kind(collection="resourcePolicies", scope="regions", item="resourcePolicy", schema="ResourcePolicy"),
        Kind(collection="networks", scope="global", item="network", schema="Network"),
        Kind(collection="firewalls", scope="global", item="firewall", schema="Firewall"),
    )
}


@dataclass(kw_only=True)
class Operation:
    body: Body
    target: str
    reads_left: int
    end: Callable[[], None]
    errors: list[Body] = field(default_factory=list)
    http: tuple[int, str] = (503, "SERVICE UNAVAILABLE")


def link(path: str) -> str:
    return LINK + path


def path_of(value: str, project: str) -> str:
    """The path that a full or partial URL means; "" when it is neither."""
    _, found, rest = value.partition("projects/")
    if found:
        return "projects/" + rest
    return f"projects/{project}/{value}" if value.startswith(("zones/", "regions/", "global/")) else ""


def parts_of(path: str) -> tuple[str, str, str]:
    """(scope as in "zones/us-central1-a" or "global", collection, name)."""
    parts = path.split("/")
    return "/".join(parts[2:-2]), parts[-2], parts[-1]


class Store:
    def __init__(self) -> None:
        self.resources: dict[str, Body] = {}
        self.operations: dict[str, Operation] = {}
        self.requests: dict[tuple[str, str], Operation] = {}
        self.hidden: dict[str, int] = {}
        self.operation_reads = 1
        self.clock_s = 0.0
        self._ids = itertools.count(1_000_000_000_000_000_001)

    def new_id(self) -> str:
        return str(next(self._ids))

    def now(self) -> str:
        moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=self.clock_s)
        return moment.isoformat(timespec="milliseconds")

    # -- resources --------------------------------------------------------------------------------------------------

    def of(self, collection: str, project: str | None = None) -> Iterator[tuple[str, Body]]:
        for path, body in list(self.resources.items()):
            if path.split("/")[-2] == collection and project in (None, path.split("/")[1]):
                yield path, body

    def read(self, path: str) -> Body:
        """As a GET sees it: one step of what is under way on it first. Raises 404."""
        self.step(path)
        if path not in self.resources or self._hides(path):
            raise not_found(path)
        return self.resources[path]

    def visible(self, path: str) -> bool:
        """As a list sees it."""
        self.step(path)
        return path in self.resources and not self._hides(path)

    def _hides(self, path: str) -> bool:
        if self.hidden.get(path, 0) <= 0:
            return False
        self.hidden[path] -= 1
        return True

    def refer(self, value: str, project: str, collection: str, where: str) -> tuple[str, Body]:
        """The resource that a field refers to. Raises what Compute says of a dangling reference, or one not ready."""
        path = path_of(value, project)
        if not path or len(path.split("/")) < 5 or path.split("/")[-2] != collection:
            raise invalid(where, value, "The URL is malformed.")
        if path not in self.resources:
            raise invalid(where, value, f"The referenced {KINDS[collection].item} resource cannot be found.")
        if any(op.target == path and op.body["status"] != "DONE" for op in self.operations.values()):
            self.step(path)
            raise GcpError(400, "resourceNotReady", f"The resource '{path}' is not ready")
        return path, self.resources[path]

    def users_of(self, path: str) -> list[str]:
        """Paths of the resources whose bodies refer to this one; a network's own list of subnets doesn't count."""
        wanted = link(path)
        return [other for other, body in self.resources.items() if other != path and _mentions(body, wanted)]

    # -- operations -------------------------------------------------------------------------------------------------

    def begin(
        self,
        kind: str,
        target: str,
        end: Callable[[], None],
        *,
        errors: list[Body] | None = None,
        http: tuple[int, str] = (503, "SERVICE UNAVAILABLE"),
        reads: int | None = None,
    ) -> Operation:
        """Start an operation on `target`; with `errors` it will fail, and `end` then undoes."""
        project = target.split("/")[1]
        scope = parts_of(target)[0]
        number = self.new_id()
        name = f"operation-{number}"
        path = f"projects/{project}/{scope}/operations/{name}"
        body: Body = {
            "kind": "compute#operation",
            "id": number,
            "name": name,
            "operationType": kind,
            "targetLink": link(target),
            "targetId": self.resources.get(target, {}).get("id", number),
            "status": "RUNNING",
            "progress": 0,
            "user": "stand-in",
            "insertTime": self.now(),
            "startTime": self.now(),
            "selfLink": link(path),
        }
        if scope != "global":
            body[scope.split("/")[0][:-1]] = link(f"projects/{project}/{scope}")
        left = self.operation_reads if reads is None else reads
        operation = Operation(body=body, target=target, reads_left=left, end=end, errors=errors or [], http=http)
        self.operations[path] = operation
        return operation

    def step(self, target: str) -> None:
        """A read of `target`: what is under way on it comes one nearer to its end."""
        for operation in list(self.operations.values()):
            if operation.target == target and operation.body["status"] != "DONE":
                self.tick(operation)

    def tick(self, operation: Operation) -> None:
        operation.reads_left -= 1
        if operation.reads_left <= 0:
            self.finish(operation)

    def finish(self, operation: Operation) -> None:
        if operation.body["status"] == "DONE":
            return
        operation.body |= {"status": "DONE", "progress": 100, "endTime": self.now()}
        if operation.errors:
            code, message = operation.http
            operation.body |= {
                "error": {"errors": operation.errors},
                "httpErrorStatusCode": code,
                "httpErrorMessage": message,
            }
        operation.end()

    def finish_all(self) -> None:
        for operation in list(self.operations.values()):
            self.finish(operation)


def _mentions(body: Any, wanted: str) -> bool:
    if isinstance(body, dict):
        return any(_mentions(each, wanted) for key, each in body.items() if key not in ("selfLink", "users"))
    if isinstance(body, list):
        return any(_mentions(each, wanted) for each in body)
    return bool(body == wanted)


def scope_path(project: str, zone: str) -> str:
    """The region's path for a zone."""
    return f"projects/{project}/regions/{catalogue.region_of(zone)}"
