"""Whether Lambda will give what is asked for, from its own API, before anything is made. Quotas it doesn't tell."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from infra import checks
from infra.errors import InfraError, SpecError
from infra.providers.lambda_cloud import api, leftovers, names
from infra.providers.lambda_cloud import plan as planning
from infra.providers.lambda_cloud.machines import LambdaMachines
from infra.providers.lambda_cloud.plan import no_capacity

if TYPE_CHECKING:
    from infra.gang import Machine
    from infra.providers.base import Deployment
    from infra.spec import ClusterSpec


def problems(spec: ClusterSpec, deployment: Deployment) -> list[str]:
    """One sentence each; keys with their file."""
    where = f"stacks/{deployment.stack_file.name}, key trainstack:cluster"
    if len(deployment.identity) > names.LONGEST_TAG:
        return [
            f"the tag {deployment.identity!r} is longer than Lambda's {names.LONGEST_TAG}: take a shorter stack name"
        ]
    try:
        client = api.connect()
        choice = planning.plan(spec, client.offers)
    except SpecError as error:
        return [f"{where}.{line}" for line in str(error).splitlines()]
    except InfraError as error:
        return [str(error)]
    machines = LambdaMachines(deployment, client, wish={}, places={})
    found: list[str] = []
    found += checks.asked(lambda: _strangers(deployment, client))
    found += checks.asked(lambda: _capacity(spec, choice, machines.find(), where))
    found += checks.asked(lambda: _image(spec, client, where))
    return list(dict.fromkeys(found))


def _strangers(deployment: Deployment, client: api.Lambda) -> list[str]:
    foreign = [each.id for each in leftovers.find(deployment, client) if not each.is_ours]
    return checks.strangers(deployment, foreign, has="this Lambda account has machines")


def _capacity(spec: ClusterSpec, choice: planning.Plan, ours: list[Machine], where: str) -> list[str]:
    """What is there today is no matter for machines that run already; Lambda tells no numbers, only yes or no."""
    living = [machine for machine in ours if machine.lives]
    if len(living) >= spec.nodes:
        return []
    if not choice.machine.regions:
        return [no_capacity(choice.machine.name)]
    if choice.regions is not None and not set(choice.regions) & {*choice.machine.regions, *(m.zone for m in living)}:
        key = "zones" if spec.zones else "region"
        return [
            f"{where}.{key}: {', '.join(choice.regions)} has no {choice.machine.name} free now: take of "
            f"{', '.join(choice.machine.regions)}, or remove the key"
        ]
    return []


def _image(spec: ClusterSpec, client: api.Lambda, where: str) -> list[str]:
    if spec.image is None:
        return []
    families = sorted({image.family for image in client.images() if image.architecture == "x86_64"})
    if spec.image in families:
        return []
    return [f"{where}.image is {spec.image!r}: take one of Lambda's image families ({', '.join(families)})"]


def open_to_all(client: api.Lambda) -> list[str]:
    """Rules of the account, which hold for every machine beside ours, that let the world to SSH."""
    found = []
    for rule in client.global_rules().rules:
        everywhere = ipaddress.ip_network(rule.source_network, strict=False).prefixlen == 0
        low, high = rule.port_range or (1, 65535)
        if everywhere and rule.protocol in ("tcp", "all") and low <= 22 <= high:
            found.append(rule.description or "a rule without description")
    return found
