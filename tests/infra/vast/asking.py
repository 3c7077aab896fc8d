"""What the tests of provider `vast` ask for."""

from __future__ import annotations

from typing import Any

from infra import quote
from infra.gang import Order
from infra.providers.base import Deployment
from infra.providers.vast import plan
from infra.providers.vast.api import Vast
from infra.providers.vast.machines import VastMachines
from infra.spec import ClusterSpec, parse
from tests.infra import ordering

SHOWN_USD = 16.05
"""What the stand-in's usual offer costs with 200 GiB of disk: 16 + 200 * 0.18 / 720."""


def asked(**keys: Any) -> ClusterSpec:
    usual: dict[str, Any] = {"provider": "vast", "nodes": 1, "gpus": "H100:8"}
    wanted = {key: value for key, value in (usual | keys).items() if value is not None}
    return parse(wanted, file="stacks/Pulumi.vast.yaml")


def wish(**keys: Any) -> dict[str, Any]:
    spec = asked(**keys)
    return plan.wish(spec, plan.kind(spec))


def order(name: str = "node-0", *, token: str = "0" * 32) -> Order:
    return ordering.order(name, zone=plan.ANYWHERE, token=token)


def machines(client: Vast, mine: Deployment, *, shown_usd: float = SHOWN_USD, **keys: Any) -> VastMachines:
    """Ready to launch: the price was shown."""
    quote.note(mine, shown_usd)
    ticks = iter(range(0, 10**9, 60))
    return VastMachines(mine, client, wish=wish(**keys), sleep=lambda _: None, clock=lambda: next(ticks))
