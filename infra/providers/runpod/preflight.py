"""Whether RunPod will give what is asked for, from its own API, before anything is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infra import checks, label
from infra.errors import InfraError, SpecError
from infra.providers.runpod import api, leftovers, plan
from infra.providers.runpod.machines import RunPodMachines

if TYPE_CHECKING:
    from infra.providers.base import Deployment
    from infra.spec import ClusterSpec


def problems(spec: ClusterSpec, deployment: Deployment) -> list[str]:
    """One sentence each; keys with their file."""
    where = f"stacks/{deployment.stack_file.name}, key trainstack:cluster"
    if wrong := label.problems(deployment, longest=plan.LONGEST_LABEL, provider="RunPod"):
        return wrong
    try:
        wanted = plan.wish(spec, plan.kind(spec))
        client = api.connect()
    except SpecError as error:
        return [f"{where}.{line}" for line in str(error).splitlines()]
    except InfraError as error:
        return [str(error)]
    found = checks.asked(lambda: _strangers(deployment, client))
    if not found:  # a key that the list refuses is refused by the catalogue too
        found += checks.asked(lambda: _capacity(spec, wanted, deployment, client, where))
    return found


def _strangers(deployment: Deployment, client: api.RunPod) -> list[str]:
    foreign = [each.id for each in leftovers.find(deployment, client) if not each.is_ours]
    return checks.strangers(deployment, foreign, has="this RunPod account has pods, clusters or volumes")


def _capacity(
    spec: ClusterSpec, wanted: dict[str, Any], deployment: Deployment, client: api.RunPod, where: str
) -> list[str]:
    """What is to be had today is no matter for machines that run already."""
    count, region = int(wanted["gpu_count"]), spec.region or plan.ANYWHERE
    gpu = plan.offered(client.gpus(plan.product(wanted), count), wanted)
    if gpu is not None and count > gpu.maxCount.secure:
        return [f"{where}.gpus: {spec.gpus} is more than the {gpu.maxCount.secure} that one machine of RunPod has"]
    if any(machine.lives for machine in RunPodMachines(deployment, client, wish=wanted, places={}).find()):
        return []
    return [] if plan.data_centers(gpu, region) else [plan.no_capacity(wanted, region)]
