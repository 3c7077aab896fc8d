"""The network volume that the nodes share, as a dynamic resource: made before the machines, removed after them.

Pulumi's state holds VolumeVerbs by module and name, so destroy runs today's code: keep this path. Found by name, which
is this stack's and checkout's alone, so that a killed `up` makes nothing twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, ResourceProvider, UpdateResult

from infra import label
from infra.dynamic import changed, one_sentence
from infra.errors import ProviderError
from infra.making import made_once
from infra.providers.base import Deployment
from infra.providers.runpod import api
from infra.providers.runpod.api import ImpossibleError, NotThereError, RunPod, Volume
from infra.stack import project_root

_LET_GO_S, _TRIES = 5.0, 24


def name(deployment: Deployment, *, data_center: str) -> str:
    return label.text(deployment, node="shared", token="volume", zone=data_center)  # noqa: S106 - not a password


def ensure(
    client: RunPod,
    deployment: Deployment,
    *,
    size_gb: int,
    data_center: str,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Its id, whether it was there or not; one that is there grows, and never shrinks. Raises ProviderError."""
    called = name(deployment, data_center=data_center)

    def there() -> Volume | None:
        return next((each for each in client.volumes() if each.name == called), None)

    found = there()
    if found is None:
        return made_once(
            lambda: client.add_volume(called, size_gb=size_gb, data_center=data_center),
            with_token=lambda: made.id if (made := there()) is not None else None,
            sleep=sleep,
        )
    if found.size > size_gb:
        raise ProviderError(
            f"the network volume {found.id} has {found.size} GB, and none can shrink: write `size_gib: {found.size}`, "
            "or run `make destroy`, which removes it with what is on it"
        )
    if found.size < size_gb:
        client.grow_volume(found.id, size_gb=size_gb)
    return found.id


def remove(client: RunPod, id_: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """One that a pod has just let go of may be refused for a while longer. What isn't there is removed."""
    for left in reversed(range(_TRIES)):
        try:
            client.remove_volume(id_)
        except NotThereError:
            return
        except ImpossibleError:
            if not left:
                raise
        else:
            return
        sleep(_LET_GO_S)


class VolumeVerbs(ResourceProvider):
    """Create, look, grow and remove."""

    serialize_as_secret_always = False

    @one_sentence
    def create(self, props: dict[str, Any]) -> CreateResult:
        return CreateResult(_ensured(props), props)

    @one_sentence
    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        replaces = changed(_olds, _news, "project", "stack", "data_center")
        differs = changed(_olds, _news, "size_gb")
        return DiffResult(changes=bool(replaces or differs), replaces=replaces, delete_before_replace=True)

    @one_sentence
    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        is_there = any(each.id == id_ for each in api.connect().volumes())
        return ReadResult(id_, props) if is_there else ReadResult("", {})

    @one_sentence
    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> UpdateResult:
        _ensured(_news)
        return UpdateResult(_news)

    @one_sentence
    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        remove(api.connect(), _id)


def _ensured(props: Mapping[str, Any]) -> str:
    deployment = Deployment(root=project_root(), stack=props["stack"], project=props["project"])
    size_gb, data_center = int(props["size_gb"]), props["data_center"]
    return ensure(api.connect(), deployment, size_gb=size_gb, data_center=data_center)


class NetworkVolume(Resource, module="trainstack", name="RunPodVolume"):
    """Inputs: project, stack, size_gb, data_center. Its id is RunPod's."""

    def __init__(self, resource_name: str, inputs: Mapping[str, Any], *, opts: pulumi.ResourceOptions) -> None:
        super().__init__(VolumeVerbs(), resource_name, dict(inputs), opts)
