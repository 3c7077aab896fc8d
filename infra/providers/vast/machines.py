"""The gang's machine on Vast.ai: how it is taken from an offer, found and ended. The order of things: infra/gang.py.

A create knows no idempotency token, so the token is in the label: before a create, and after one whose answer never
came, the instance that bears it is looked for. What was made is compared with what was promised before it is kept.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from infra import label, quote
from infra.ending import LOOK_EVERY_S, end_each
from infra.errors import CapacityError, ProviderError
from infra.gang import Machine, Order
from infra.making import end_or_tell, made_once
from infra.providers.base import Deployment
from infra.providers.vast import plan, request
from infra.providers.vast.api import Instance, NotThereError, StillbornError, TakenError, Vast

State = Literal["starting", "running", "stopped", "ending", "ended"]
BOOT_DEADLINE_S = 1800.0  # images of many GB come over the host's own line
_END_DEADLINE_S = 600.0
_LOOKS = 12
_OFFERS_TRIED = 8
_DEAD = ("stopped", "exited", "offline", "frozen")
"""Container states that bill and are of no use. "unknown" (no heartbeat) isn't one: a host may be heard again."""


class VastMachines:
    """One stack's machines. `wish`: plan.wish."""

    boot_deadline_s = BOOT_DEADLINE_S

    def __init__(
        self,
        deployment: Deployment,
        client: Vast,
        *,
        wish: Mapping[str, Any],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deployment, self._client, self._wish = deployment, client, wish
        self._sleep, self._clock = sleep, clock

    def launch(self, order: Order) -> str:
        """The cheapest offer that can be had at the price that was shown."""
        most = quote.most(self._deployment)
        if (made := self._with_token(order.token)) is not None:
            return self._kept(made, order, most)
        refusals = []
        for offer in self._offers(order, most)[:_OFFERS_TRIED]:
            try:
                return self._kept(self._created(order, offer), order, most)
            except TakenError as error:
                refusals.append(str(error))
        raise CapacityError(f"{len(refusals)} offer(s) went to others meanwhile, the last: {refusals[-1]}")

    def find(self, ids: Iterable[str] = ()) -> list[Machine]:
        wanted = set(ids)
        return [
            _machine(each)
            for each in self._client.instances()
            if str(each.id) in wanted or label.is_ours(each.label, self._deployment)
        ]

    def end(self, ids: Sequence[str]) -> None:
        end(self._client, ids, sleep=self._sleep, clock=self._clock)

    def _offers(self, order: Order, most: float) -> list[plan.Quote]:
        found = plan.quotes(self._client.search(plan.query(self._wish, lifetime_s=order.boot.lifetime_s)), self._wish)
        if not found:
            raise CapacityError(plan.no_offer(self._wish))
        if found[0].usd_per_hour > most:
            raise CapacityError(
                f"{order.name}: the cheapest offer costs {quote.too_much(found[0].usd_per_hour, most)}: run "
                "`pulumi preview` for today's price"
            )
        return [each for each in found if each.usd_per_hour <= most]

    def _created(self, order: Order, offer: plan.Quote) -> str:
        doing = f"{order.name} from Vast.ai's offer {offer.offer}"
        body = request.body(order, offer, self._wish, self._deployment, url=self._client.url)
        try:
            return made_once(
                lambda: self._client.create(offer.offer, body, doing=doing),
                with_token=lambda: self._with_token(order.token),
                sleep=self._sleep,
            )
        except StillbornError as error:
            end_or_tell(self.end, error.instance, str(error))
            raise TakenError(f"{error}; what it made all the same was ended") from None

    def _kept(self, id_: str, order: Order, most: float) -> str:
        """What was made is what was promised; if not, it is ended. Raises ProviderError."""
        for _ in range(_LOOKS):
            if seen := self._client.instances([id_]):
                wrong = self._broken_promise(seen[0], most)
                break
            self._sleep(LOOK_EVERY_S)
        else:
            wrong = "isn't shown, so that nobody can tell what it costs"
        if wrong is None:
            return id_
        why = f"{order.name} ({id_}) {wrong}"
        end_or_tell(self.end, id_, why)
        raise ProviderError(f"{why}: it was ended; run `pulumi up` again for another offer")

    def _broken_promise(self, instance: Instance, most: float) -> str | None:
        count = int(self._wish["gpu_count"])
        if instance.num_gpus < count:
            return f"has {instance.num_gpus} GPU(s), and {count} were promised"
        if instance.dph_total > most:
            return f"costs {quote.too_much(instance.dph_total, most)}"
        return None

    def _with_token(self, token: str) -> str | None:
        for each in self._client.instances():
            told = label.parse(each.label)
            is_it = told is not None and told.token == token and label.is_ours(each.label, self._deployment)
            if is_it and state(each) in ("starting", "running"):
                return str(each.id)
        return None


def end(
    client: Vast,
    ids: Sequence[str],
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Returns when all are gone, as Vast.ai itself says; those that aren't there are."""
    end_each(
        ids,
        tell=lambda id_: _destroy(client, id_),
        living=lambda told: {
            str(each.id): f"{each.id} is {each.cur_state}" for each in client.instances(told) if state(each) != "ended"
        },
        deadline_s=_END_DEADLINE_S,
        cloud="Vast.ai",
        console="cloud.vast.ai/instances",
        sleep=sleep,
        clock=clock,
    )


def _destroy(client: Vast, id_: str) -> None:
    with contextlib.suppress(NotThereError):
        client.destroy(id_)


def state(instance: Instance) -> State:
    """In the gang's words."""
    if instance.cur_state == "unloaded":
        return "ended"
    if _is_held(instance) or instance.actual_status in _DEAD or _is_broken(instance):
        return "stopped"
    is_reached = bool(instance.public_ipaddr) and request.PORT in (instance.ports or {})
    return "running" if instance.actual_status == "running" and is_reached else "starting"


def _is_held(instance: Instance) -> bool:
    """Nothing runs, and nobody means it to: outbid, or stopped."""
    return {instance.cur_state, instance.intended_status, instance.next_state} == {"stopped"}


def _is_broken(instance: Instance) -> bool:
    """The host's Docker can't start the container, and will never."""
    return instance.actual_status == "created" and "OCI runtime create failed" in (instance.status_msg or "")


def _fault(instance: Instance, node: str) -> ProviderError | None:
    """Why it is of no use, where Vast.ai says so."""
    told = f"{node} ({instance.id})"
    if _is_held(instance) and instance.is_bid:
        return CapacityError(f"{told} was outbid and stopped: try again, or take `market: on-demand`")
    if _is_held(instance):
        return ProviderError(f"{told} was stopped: by hand, or because the account has no credit left (cloud.vast.ai)")
    if state(instance) == "stopped":
        said = " ".join((instance.status_msg or "without a reason").split())
        return ProviderError(f"{told} is {instance.actual_status} on its host ({said}): run `pulumi up` for another")
    return None


def _machine(instance: Instance) -> Machine:
    told = label.parse(instance.label)
    node, zone = (told.node, told.zone) if told else (str(instance.id), plan.ANYWHERE)
    ports = (instance.ports or {}).get(request.PORT, ())
    return Machine(
        id=str(instance.id),
        name=node,
        zone=zone,
        state=state(instance),
        # There is one node, which reaches itself so; the container's own address isn't told, nor could it serve others.
        private_address="127.0.0.1",
        public_address=(instance.public_ipaddr or "").strip(),
        public_port=int(ports[0].HostPort) if ports else 22,
        fault=_fault(instance, node),
    )
