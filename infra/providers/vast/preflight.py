"""Whether Vast.ai will give what is asked for, from its own API, before anything is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra import checks, label
from infra.errors import InfraError, SpecError
from infra.providers.vast import api, leftovers, plan
from infra.providers.vast.machines import VastMachines

if TYPE_CHECKING:
    from infra.providers.base import Deployment
    from infra.spec import ClusterSpec


def problems(spec: ClusterSpec, deployment: Deployment) -> list[str]:
    """One sentence each; keys with their file."""
    where = f"stacks/{deployment.stack_file.name}, key trainstack:cluster"
    if wrong := label.problems(deployment, longest=plan.LONGEST_LABEL, provider="Vast.ai"):
        return wrong
    try:
        wanted = plan.wish(spec, plan.kind(spec))
        client = api.connect()
    except SpecError as error:
        return [f"{where}.{line}" for line in str(error).splitlines()]
    except InfraError as error:
        return [str(error)]
    found: list[str] = []
    found += checks.asked(lambda: _strangers(deployment, client))
    if not found:  # a key that the list refuses is refused by the search too
        found += checks.asked(lambda: _capacity(spec, wanted, deployment, client))
    return found


def _strangers(deployment: Deployment, client: api.Vast) -> list[str]:
    foreign = [each.id for each in leftovers.find(deployment, client) if not each.is_ours]
    return checks.strangers(deployment, foreign, has="this Vast.ai account has machines")


def _capacity(spec: ClusterSpec, wanted: dict[str, object], deployment: Deployment, client: api.Vast) -> list[str]:
    """What is offered today is no matter for a machine that runs already."""
    if any(machine.lives for machine in VastMachines(deployment, client, wish=wanted).find()):
        return []
    offers = client.offers(plan.query(wanted, lifetime_s=spec.max_lifetime_s))
    return [] if plan.quotes(offers, wanted) else [plan.no_offer(wanted)]
