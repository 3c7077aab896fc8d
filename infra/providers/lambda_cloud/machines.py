"""The gang's machines on Lambda: how one is launched, found and ended. See infra/gang.py for the order of things.

Lambda's launches know no idempotency token, so the token is a tag: before a launch, and after one whose answer never
came, the machine that bears it is looked for.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from infra.ending import end_each
from infra.errors import CapacityError
from infra.gang import Machine, Order
from infra.making import made_once
from infra.providers.base import Deployment
from infra.providers.lambda_cloud import names
from infra.providers.lambda_cloud.api import Instance, Lambda, NotThereError
from infra.user_data import cloud_config

State = Literal["starting", "running", "stopped", "ending", "ended"]
_STATES: dict[str, State] = {
    "booting": "starting",
    "active": "running",
    "unhealthy": "stopped",  # it bills, and is of no use
    "terminating": "ending",
    "terminated": "ended",
    "preempted": "ended",
}
# Reports tell of 25 minutes and more for machines with eight GPUs, which are bare metal (dstack issue 2342).
BOOT_DEADLINE_S = {"one": 1200.0, "many": 2700.0}
_END_DEADLINE_S = 900.0


class LambdaMachines:
    """One stack's machines. `wish`: instance, gpus, image, key; `places`: region to its ruleset (resources.py)."""

    def __init__(
        self,
        deployment: Deployment,
        client: Lambda,
        *,
        wish: Mapping[str, Any],
        places: Mapping[str, Any],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deployment, self._client = deployment, client
        self._wish, self._places = wish, places
        self._sleep, self._clock = sleep, clock
        self.boot_deadline_s = BOOT_DEADLINE_S["many" if int(wish.get("gpus", 8)) > 1 else "one"]

    def launch(self, order: Order) -> str:
        doing = f"{order.name} in {order.zone}"
        if (made := self._with_token(order.token)) is not None:
            return made
        return made_once(
            lambda: self._client.launch(self.request(order), doing=doing),
            with_token=lambda: self._with_token(order.token),
            sleep=self._sleep,
        )

    def request(self, order: Order) -> dict[str, Any]:
        """The launch's body. Pure."""
        request = {
            "region_name": order.zone,
            "instance_type_name": self._wish["instance"],
            "ssh_key_names": [self._wish["key"]],
            "name": names.name(self._deployment, order.name),
            "hostname": order.name,
            "user_data": cloud_config(order.boot),
            "tags": names.tags(self._deployment, node=order.name, token=order.token),
            "firewall_rulesets": [{"id": self._places[order.zone]["ruleset"]}],
        }
        if self._wish.get("image"):
            request["image"] = {"family": self._wish["image"]}
        return request

    def find(self, ids: Iterable[str] = ()) -> list[Machine]:
        ours = {each.id: each for each in self._client.instances() if is_ours(each, self._deployment)}
        for id_ in sorted(set(ids) - set(ours)):
            with contextlib.suppress(NotThereError):
                ours[id_] = self._client.instance(id_)
        return [_machine(each, self._deployment) for each in ours.values()]

    def end(self, ids: Sequence[str]) -> None:
        end(self._client, ids, sleep=self._sleep, clock=self._clock)

    def _with_token(self, token: str) -> str | None:
        for each in self._client.instances():
            if tags_of(each).get(names.TOKEN_TAG) == token and _STATES[each.status] in ("starting", "running"):
                return each.id
        return None


def end(
    client: Lambda,
    ids: Sequence[str],
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Returns when all have ended, as Lambda itself says; those that aren't there have."""
    end_each(
        ids,
        tell=lambda id_: _terminate(client, id_),
        living=lambda told: {id_: f"{id_} lives" for id_ in told if not _has_ended(client, id_)},
        deadline_s=_END_DEADLINE_S,
        cloud="Lambda",
        console="cloud.lambda.ai/instances",
        sleep=sleep,
        clock=clock,
    )


def _terminate(client: Lambda, id_: str) -> None:
    with contextlib.suppress(NotThereError):
        client.terminate(id_)


def _has_ended(client: Lambda, id_: str) -> bool:
    try:
        return _STATES[client.instance(id_).status] == "ended"
    except NotThereError:
        return True


def tags_of(instance: Instance) -> dict[str, str]:
    return {tag.key: tag.value for tag in instance.tags}


def is_ours(instance: Instance, deployment: Deployment) -> bool:
    """By its tags, or by its name, which is this checkout's alone: tags are Lambda's to keep or to lose."""
    tags = tags_of(instance)
    by_tag = tags.get(names.IDENTITY_TAG) == deployment.identity and tags.get(names.OWNER_TAG) == deployment.owner
    return by_tag or instance.name.startswith(names.name(deployment, ""))


def _machine(instance: Instance, deployment: Deployment) -> Machine:
    node = tags_of(instance).get(names.NODE_TAG) or instance.name.removeprefix(names.name(deployment) + "-")
    taken = instance.status == "preempted"
    return Machine(
        id=instance.id,
        name=node,
        zone=instance.region.name,
        state=_STATES[instance.status],
        private_address=instance.private_ip,
        public_address=instance.ip,
        fault=CapacityError(f"{node} ({instance.id}) was taken away by Lambda (preempted)") if taken else None,
    )
