"""What Vast.ai's own API says is still there of a stack: instances in whatever state. Nothing else is made there."""

from __future__ import annotations

from infra import label
from infra.providers.base import Deployment, Leftover
from infra.providers.vast import machines
from infra.providers.vast.api import Vast


def find(deployment: Deployment, client: Vast) -> list[Leftover]:
    """Raises ProviderError when the list can't be had."""
    found = []
    for each in client.instances():
        told, state = label.parse(each.label), machines.state(each)
        if told is None or told.identity != deployment.identity or state == "ended":
            continue
        gpus, status = f"{each.num_gpus} × {each.gpu_name}", each.actual_status or "being provisioned"
        found.append(
            Leftover(
                kind="instance",
                id=str(each.id),
                detail=f"{gpus}, {status}, {told.node}",
                # One that is stopped bills its disk.
                usd_per_hour=each.storage_total_cost if state == "stopped" else each.dph_total,
                is_machine=True,
                is_ours=label.is_ours(each.label, deployment),
            )
        )
    return found


def remove(leftover: Leftover, client: Vast) -> None:
    """Returns when it has ended. What isn't there has ended."""
    machines.end(client, [leftover.id])
