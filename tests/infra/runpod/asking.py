"""What the tests of provider `runpod` ask for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from infra import quote
from infra.gang import Gang, Order
from infra.gang_record import Record
from infra.providers.base import Deployment
from infra.providers.runpod import plan
from infra.providers.runpod.api import RunPod
from infra.providers.runpod.machines import RunPodMachines
from infra.spec import ClusterSpec, parse
from tests.infra import ordering

POD_USD = 8 * 2.69 + 200 * 0.10 / 730
"""What a pod of the stand-in's usual GPUs costs with its disk."""
CLUSTER_USD = 2 * (8 * 3.0 + 200 * 0.10 / 730)
NOW = datetime(2026, 12, 4, 12, 1, tzinfo=UTC)
"""A minute after the stand-in's things are made."""


def asked(**keys: Any) -> ClusterSpec:
    usual: dict[str, Any] = {"provider": "runpod", "nodes": 1, "gpus": "H100:8"}
    wanted = {key: value for key, value in (usual | keys).items() if value is not None}
    return parse(wanted, file="stacks/Pulumi.runpod.yaml")


def wish(**keys: Any) -> dict[str, Any]:
    spec = asked(**keys)
    return plan.wish(spec, plan.kind(spec))


def order(name: str = "node-0", *, token: str = "0" * 32, zone: str = plan.ANYWHERE) -> Order:
    return ordering.order(name, zone=zone, token=token)


def pair(*, token: str = "0" * 32, zone: str = plan.ANYWHERE) -> list[Order]:
    """Two nodes of one gang."""
    return [order("node-0", token=token, zone=zone), order("node-1", token="f" * 32, zone=zone)]


def machines(
    client: RunPod,
    mine: Deployment,
    *,
    shown_usd: float | None = 48.1,
    now: datetime = NOW,
    volume: str = "",
    **keys: Any,
) -> RunPodMachines:
    """Ready to launch: the price was shown."""
    quote.note(mine, shown_usd)
    ticks = iter(range(0, 10**9, 60))
    zone = asked(**keys).region or plan.ANYWHERE
    return RunPodMachines(
        mine,
        client,
        wish=wish(**keys),
        places={zone: {"volume": volume} if volume else {}},
        sleep=lambda _: None,
        clock=lambda: next(ticks),
        now=lambda: now,
    )


def gang(ours: RunPodMachines, mine: Deployment, *, nodes: int = 1) -> Gang:
    ticks = iter(range(0, 10**9, 60))
    return Gang(
        machines=ours,
        record=Record(mine.gang_folder, provider="runpod", now=datetime.now(UTC)),
        names=tuple(f"node-{rank}" for rank in range(nodes)),
        what="8 × H100 on demand",
        boot=ordering.boot,
        report=lambda _: None,
        sleep=lambda _: None,
        clock=lambda: next(ticks),
    )
