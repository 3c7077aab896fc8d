"""The gang's machines on Compute Engine: how one is launched, found and ended. See infra/gang.py for the order.

instances.insert directly, since pulumi_gcp's Instance knows no requestId: a kill between the call and the record would
leave a machine that the state doesn't know. On top of it the name is the node's, and a zone has each name once.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from infra.ending import end_each
from infra.errors import ProviderError
from infra.gang import Machine, Order
from infra.providers.base import Deployment
from infra.providers.gcp import body, faults, names
from infra.providers.gcp.api import Client

State = Literal["starting", "running", "stopped", "ending", "ended"]
STATES: dict[str, State] = {
    "PENDING": "starting",  # flex-start: waits for capacity
    "PROVISIONING": "starting",
    "STAGING": "starting",
    "REPAIRING": "starting",
    "RUNNING": "running",
    "PENDING_STOP": "stopped",
    "STOPPING": "stopped",
    "SUSPENDING": "stopped",
    "SUSPENDED": "stopped",
    "STOPPED": "stopped",
    "TERMINATED": "stopped",  # Google's word for off: its disk bills on
    "DEPROVISIONING": "ending",
}
_BOOT_S = 900.0
_END_S = 1200.0  # machines with eight GPUs need minutes to go
_LOOK_EVERY_S = 3.0
_TRIES = 6
_REQUESTS = uuid.UUID("b0bb1a4e-6f5c-4f0e-9a51-3a1f0f6f6c11")
"""The namespace of our request ids."""


class GcpMachines:
    """One stack's machines in one project. An id is "us-central1-a/ts-my-stack-1a2b3c4d-node-0"."""

    def __init__(
        self,
        deployment: Deployment,
        client: Client,
        *,
        wish: Mapping[str, Any],
        places: Mapping[str, Any],
        pinned: Mapping[str, Any],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._deployment, self._client = deployment, client
        self._wish, self._places, self._pinned = wish, places, pinned
        self._now = now
        self.boot_deadline_s = _BOOT_S + float(wish.get("wait_s", 0))

    def launch(self, order: Order) -> str:
        """Waits for the operation, since that there is no capacity is said in it."""
        asked = body.instance(
            self._deployment,
            order,
            wish=self._wish,
            place=self._places.get(order.zone, {}),
            pinned=self._pinned,
            now=self._now(),
        )
        path = f"{order.zone}/{asked['name']}"
        for number in range(_TRIES):
            # The first request id is the same after a kill, and so is then the machine. A later one is for a token
            # whose machine has gone since: the name sees to it that there is one all the same.
            with contextlib.suppress(faults.AlreadyExists):
                self._insert(order, asked, request_id=str(uuid.uuid5(_REQUESTS, f"{order.token}/{number}")))
            there = self._get(path)
            if there is not None and self._is_usable(there, path):
                return path
            self._client.sleep(_LOOK_EVERY_S)
        raise ProviderError(
            f"starting {order.name} in {order.zone}: Google says that it is made, and doesn't show it: "
            "run `fab leftovers`, then `pulumi up` again"
        )

    def find(self, ids: Iterable[str] = ()) -> list[Machine]:
        doing = f"listing the machines of stack {self._deployment.stack}"
        which = f'labels.{names.STACK_LABEL}="{names.stem(self._deployment)}"'
        found = {}
        for each in self._client.aggregated("instances", doing=doing, which=which):
            if names.owner_of(each) == self._deployment.owner:
                machine = _machine(each)
                found[machine.id] = machine
        # A list lags behind by seconds; asked for by name, a machine is told as it is.
        for id_ in sorted(set(ids) - set(found)):
            if (there := self._get(id_)) is not None:
                found[id_] = _machine(there)
        return list(found.values())

    def end(self, ids: Sequence[str]) -> None:
        end_each(
            ids,
            tell=self._delete,
            living=lambda told: {id_: f"{id_} is there" for id_ in told if self._get(id_) is not None},
            deadline_s=_END_S,
            cloud="Google",
            console="the console",
            sleep=self._client.sleep,
            clock=self._client.clock,
        )

    def _delete(self, id_: str) -> None:
        # In use: it is ending, or starting, and the look that follows says what becomes of it.
        with contextlib.suppress(faults.NotFound, faults.InUse):
            self._client.delete(self._path(id_), doing=f"ending {id_}")

    def _insert(self, order: Order, asked: Mapping[str, Any], *, request_id: str) -> None:
        doing = f"starting {order.name} in {order.zone}"
        path = f"projects/{self._client.project}/zones/{order.zone}/instances"
        operation = self._client.insert(path, asked, doing=doing, request_id=request_id)
        self._client.wait(operation, doing=doing, deadline_s=self.boot_deadline_s)

    def _is_usable(self, there: Mapping[str, Any], id_: str) -> bool:
        """Whether what has the name is our machine and lives; one that is off is ended, so that its name is free."""
        if there.get("labels", {}).get(names.STACK_LABEL) != names.stem(self._deployment) or (
            names.owner_of(there) != self._deployment.owner
        ):
            raise ProviderError(
                f"{id_} is there and isn't of this checkout: take another stack name, or remove it if it is yours"
            )
        if _machine(there).lives:
            return True
        self.end([id_])
        return False

    def _get(self, id_: str) -> dict[str, Any] | None:
        try:
            return self._client.get(self._path(id_), doing=f"looking at {id_}")
        except faults.NotFound:
            return None

    def _path(self, id_: str) -> str:
        zone, _, name = id_.partition("/")
        return f"projects/{self._client.project}/zones/{zone}/instances/{name}"


def _machine(told: Mapping[str, Any]) -> Machine:
    try:
        zone, first = str(told["zone"]).rpartition("/")[2], (told.get("networkInterfaces") or [{}])[0]
        public = [config.get("natIP", "") for config in first.get("accessConfigs", [])]
        return Machine(
            id=f"{zone}/{told['name']}",
            name=told.get("labels", {}).get(names.NODE_LABEL, told["name"]),
            zone=zone,
            state=STATES[told["status"]],
            private_address=first.get("networkIP", ""),
            public_address=public[0] if public else "",
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ProviderError(
            f"Google described instance {told.get('name', '?')} without {error} or in a state that isn't known: "
            "run the command again"
        ) from None
