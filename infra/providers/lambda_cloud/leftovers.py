"""What Lambda's own API says is still there of a stack; and its removal. Machines first: only they cost anything."""

from __future__ import annotations

from collections.abc import Iterator

from infra.providers.base import Deployment, Leftover, all_of
from infra.providers.lambda_cloud import access, machines, names
from infra.providers.lambda_cloud.api import Lambda

_MACHINE, _RULESET, _KEY = "instance", "firewall ruleset", "SSH key"


def find(deployment: Deployment, client: Lambda) -> list[Leftover]:
    """Everything, in the order of removal. Raises ProviderError when a list can't be had."""
    return all_of(
        [
            lambda: _machines(deployment, client),
            lambda: _rulesets(deployment, client),
            lambda: _keys(deployment, client),
        ]
    )


def _machines(deployment: Deployment, client: Lambda) -> Iterator[Leftover]:
    for each in client.instances():
        ours = machines.is_ours(each, deployment)
        named = machines.tags_of(each).get(names.IDENTITY_TAG) == deployment.identity
        if each.status != "terminated" and (ours or named):
            yield Leftover(
                kind=_MACHINE,
                id=each.id,
                detail=f"{each.instance_type.name}, {each.status}, {each.region.name}, {each.name}",
                usd_per_hour=each.instance_type.price_cents_per_hour / 100,
                is_machine=True,
                is_ours=ours,
            )


def _rulesets(deployment: Deployment, client: Lambda) -> Iterator[Leftover]:
    for each in client.rulesets():
        if each.name == names.name(deployment):
            yield Leftover(kind=_RULESET, id=each.id, detail=each.region.name, usd_per_hour=0.0)


def _keys(deployment: Deployment, client: Lambda) -> Iterator[Leftover]:
    for each in client.ssh_keys():
        if each.name == names.name(deployment):
            yield Leftover(kind=_KEY, id=each.id, detail=each.name, usd_per_hour=0.0)


def remove(leftover: Leftover, client: Lambda) -> None:
    """Returns when it has ended. What isn't there has ended."""
    if leftover.kind == _MACHINE:
        machines.end(client, [leftover.id])
    elif leftover.kind == _RULESET:
        access.remove_ruleset(client, leftover.id)
    else:
        access.remove_key(client, leftover.id)
