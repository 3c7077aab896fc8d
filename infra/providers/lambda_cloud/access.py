"""Who may reach the machines: the stack's SSH key and a firewall ruleset in each region, as one dynamic resource.

Pulumi's state holds AccessVerbs by module and name, so destroy runs today's code: keep this path. All of it is free.
Found by name, which is this stack's and checkout's alone, so that a killed `up` makes nothing twice.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, Resource, ResourceProvider, UpdateResult

from infra.dynamic import changed, one_sentence
from infra.errors import ProviderError
from infra.providers.base import Deployment
from infra.providers.lambda_cloud import api, names
from infra.stack import project_root

_LET_GO_S, _TRIES = 5.0, 24


def rules(ssh_from: Sequence[str]) -> list[dict[str, Any]]:
    """SSH from there, and ping, which NCCL doesn't need and people do."""
    found: list[dict[str, Any]] = []
    for network in ssh_from:
        found.append({"protocol": "tcp", "port_range": [22, 22], "source_network": network, "description": "SSH"})
        found.append({"protocol": "icmp", "source_network": network, "description": "ping"})
    return found


def ensure(client: api.Lambda, deployment: Deployment, props: Mapping[str, Any]) -> dict[str, str]:
    """The key and the rulesets as `props` say; region to its ruleset's id."""
    name, wanted = names.name(deployment), rules(props["ssh_from"])
    keys = [key for key in client.ssh_keys() if key.name == name]
    if not any(key.public_key.split()[:2] == props["public_key"].split()[:2] for key in keys):
        for key in keys:
            client.remove_key(key.id)
        client.add_key(name, props["public_key"])
    there = {ruleset.region.name: ruleset for ruleset in client.rulesets() if ruleset.name == name}
    found = {}
    for region in props["regions"]:
        ruleset = there.get(region)
        if ruleset is None:
            found[region] = client.add_ruleset(name, region, wanted)
        else:
            client.change_ruleset(ruleset.id, wanted)
            found[region] = ruleset.id
    return found


def remove_ruleset(client: api.Lambda, id_: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """One that a machine has just let go of is "in use" for a while longer."""
    for left in reversed(range(_TRIES)):
        try:
            client.remove_ruleset(id_)
        except api.NotThereError:
            return
        except api.InUseError:
            if not left:
                raise
        else:
            return
        sleep(_LET_GO_S)


def remove_key(client: api.Lambda, id_: str) -> None:
    with contextlib.suppress(api.NotThereError):
        client.remove_key(id_)


class AccessVerbs(ResourceProvider):
    """Create, change and remove."""

    serialize_as_secret_always = False

    @one_sentence
    def create(self, props: dict[str, Any]) -> CreateResult:
        deployment = _deployment(props)
        rulesets = ensure(api.connect(), deployment, props)
        return CreateResult(names.name(deployment), {**props, "key": names.name(deployment), "rulesets": rulesets})

    @one_sentence
    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        missing = [region for region in _news["regions"] if region not in _olds["rulesets"]]
        differs = changed(_olds, _news, "ssh_from", "public_key")
        return DiffResult(changes=bool(missing or differs), replaces=[], delete_before_replace=True)

    @one_sentence
    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> UpdateResult:
        """Regions are added and none taken away: a machine may be in one that isn't offered today."""
        news = {**_news, "regions": sorted({*_news["regions"], *_olds["rulesets"]})}
        rulesets = ensure(api.connect(), _deployment(news), news)
        return UpdateResult({**_news, "key": _olds["key"], "rulesets": rulesets})

    @one_sentence
    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        client, name = api.connect(), names.name(_deployment(_props))
        refused = None
        for ruleset in client.rulesets():
            if ruleset.name == name:
                try:
                    remove_ruleset(client, ruleset.id)
                except ProviderError as error:
                    refused = error
        for key in client.ssh_keys():
            if key.name == name:
                remove_key(client, key.id)
        if refused is not None:
            raise refused


def _deployment(props: Mapping[str, Any]) -> Deployment:
    return Deployment(root=project_root(), stack=props["stack"], project=props["project"])


class Access(Resource, module="trainstack", name="LambdaAccess"):
    """Inputs: project, stack, public_key, ssh_from, regions. Outputs: key (its name), rulesets (region to id)."""

    key: pulumi.Output[str]
    rulesets: pulumi.Output[dict[str, str]]

    def __init__(self, name: str, inputs: Mapping[str, Any], *, opts: pulumi.ResourceOptions) -> None:
        super().__init__(AccessVerbs(), name, {**inputs, "key": None, "rulesets": None}, opts)
