"""What RunPod's own API says is still there of a stack: clusters and pods in whatever state, then network volumes."""

from __future__ import annotations

from collections.abc import Iterator

from infra import label
from infra.providers.base import Deployment, Leftover, all_of
from infra.providers.runpod import machines, plan, pricing, volume
from infra.providers.runpod.api import RunPod

_POD, _CLUSTER, _VOLUME = "pod", "cluster", "network volume"


def find(deployment: Deployment, client: RunPod) -> list[Leftover]:
    """Everything, in the order of removal. Raises ProviderError when a list can't be had."""
    return all_of([lambda: _machines(deployment, client), lambda: _volumes(deployment, client)])


def _machines(deployment: Deployment, client: RunPod) -> Iterator[Leftover]:
    for each in machines.units(client):
        told = label.parse(each.name)
        if told is None or told.identity != deployment.identity or not each.lives:
            continue
        statuses = ", ".join(pod.status for pod in each.pods) or "no pod yet"
        yield Leftover(
            kind=_CLUSTER if each.kind == "clusters" else _POD,
            id=each.id,
            detail=f"{_gpus(each)}, {statuses}, {told.node}",
            usd_per_hour=each.usd_per_hour,
            is_machine=True,
            is_ours=label.is_ours(each.name, deployment),
        )


def _gpus(unit: machines.Unit) -> str:
    if unit.cluster is not None:
        compute = unit.cluster.compute
        return f"{compute.podCount} × {compute.gpuCountPerPod} × {compute.gpuTypeId}"
    gpu = unit.pods[0].gpu
    return f"{gpu.count} × {gpu.id}" if gpu else "no GPU"


def _volumes(deployment: Deployment, client: RunPod) -> Iterator[Leftover]:
    for each in client.volumes():
        told = label.parse(each.name)
        if told is not None and told.identity == deployment.identity:
            yield Leftover(
                kind=_VOLUME,
                id=each.id,
                detail=f"{each.size} GB in {each.dataCenter}, mounted at {plan.SHARED_PATH}",
                usd_per_hour=pricing.volume_usd_per_hour(each.size),
                is_ours=label.is_ours(each.name, deployment),
            )


def remove(leftover: Leftover, client: RunPod) -> None:
    """Returns when it has ended. What isn't there has ended."""
    if leftover.kind == _VOLUME:
        volume.remove(client, leftover.id)
    else:
        machines.end(client, {leftover.id: "clusters" if leftover.kind == _CLUSTER else "pods"})
