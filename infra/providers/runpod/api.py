"""RunPod's API, version 2, as published (its OpenAPI document of 2026-08): the calls that we make, and their answers.

Version 1 was switched off in 2026-11. Version 2 knows no interruptible pods. What a GPU costs in a cluster is told by
the older GraphQL API alone, whose errors come with status 200. Creates have no idempotency token.
"""

from __future__ import annotations

import functools
import os
import time
import tomllib
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlencode

from pydantic import AwareDatetime, BaseModel, ConfigDict, TypeAdapter

from infra.errors import AccessError, CapacityError, ProviderError, QuotaError
from infra.rest import Pace, Rest

URL_VARIABLE, URL = "RUNPOD_API_URL", "https://api.runpod.io"
KEY_VARIABLE = "RUNPOD_API_KEY"
KEY_FILE = Path("~/.runpod/config.toml")
EVERY_S = 1.1  # the published policy is 60 calls in 60 s; and a tenth, for the way there
_NO_CREDIT = ("balance", "credit", "funds", "spend limit", "spending limit", "payment")

Kind = Literal["pods", "clusters"]
"""As the paths call them."""
Product = Literal["POD", "CLUSTER"]
Status = Literal["PROVISIONING", "STARTING", "RUNNING", "EXITED", "ERROR", "TERMINATED"]


class NotThereError(ProviderError):
    """What was named isn't there (any more)."""


class ImpossibleError(ProviderError):
    """Status 400 or 409: it can't be done as things are. RunPod's word for no capacity too, without a code."""


class _Told(BaseModel):
    # Strict: a field that changed its type is an error. Unknown fields are RunPod's to add.
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class Gpu(_Told):
    id: str
    count: int


class Endpoint(_Told):
    host: str
    port: int


class Ssh(_Told):
    direct: Endpoint | None
    """Where port 22 is reached; only while the pod runs."""


class Membership(_Told):
    id: str
    rank: int | None
    ip: str | None = None
    """On the cluster's own network."""


class Pod(_Told):
    id: str
    name: str
    status: Status
    gpu: Gpu | None = None
    cost: float
    """$ an hour now; 0 when it has exited."""
    dataCenterId: str | None
    cudaVersion: str | None
    """What the host's driver can run, "12.8"; None when that isn't known."""
    ssh: Ssh
    cluster: Membership | None = None


class Pods(_Told):
    pods: tuple[Pod, ...]


class Compute(_Told):
    gpuTypeId: str
    gpuCountPerPod: int
    podCount: int


class Cluster(_Told):
    id: str
    name: str
    compute: Compute
    createdAt: AwareDatetime
    dataCenterId: str | None = None

    @property
    def created_at(self) -> datetime:
        return self.createdAt


class Clusters(_Told):
    clusters: tuple[Cluster, ...]


class Rates(_Told):
    secure: float
    """$ an hour for one GPU in RunPod's own data centers."""


class Counts(_Told):
    secure: int


class Stock(_Told):
    id: str
    availability: Literal["NONE", "LOW", "MEDIUM", "HIGH"]


class GpuType(_Told):
    id: str
    secure: bool
    price: Rates
    maxCount: Counts
    availability: Literal["NONE", "LOW", "MEDIUM", "HIGH"] = "NONE"
    dataCenters: tuple[Stock, ...] = ()
    """Left out when there is none anywhere."""


class GpuTypes(_Told):
    gpus: tuple[GpuType, ...]


class Volume(_Told):
    id: str
    name: str
    size: int
    """GB."""
    dataCenter: str


class Volumes(_Told):
    networkVolumes: tuple[Volume, ...]


class _ClusterRate(_Told):
    id: str
    clusterPrice: float | None


class _ClusterRates(_Told):
    gpuTypes: tuple[_ClusterRate, ...]


class _GraphError(_Told):
    message: str


class _GraphAnswer(_Told):
    data: _ClusterRates | None = None
    errors: tuple[_GraphError, ...] = ()


class _Made(_Told):
    id: str


class RunPod:
    """The account that `key` belongs to."""

    def __init__(self, url: str, key: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.url = url
        pace = Pace(EVERY_S, sleep=sleep)
        self._rest = Rest(url, key, name="RunPod", translate=translated, pace=pace, sleep=sleep)
        self._cluster_rates: dict[str, float | None] | None = None
        self._stock: dict[tuple[Product, int], tuple[GpuType, ...]] = {}

    def pods(self) -> tuple[Pod, ...]:
        """All of the account, those of clusters too; one that was terminated drops out of it sooner or later."""
        path = "/v2/pods?includeClusterPods=true"
        return self._rest.call("GET", path, TypeAdapter(Pods), doing="RunPod's pods").pods

    def clusters(self) -> tuple[Cluster, ...]:
        return self._rest.call("GET", "/v2/clusters", TypeAdapter(Clusters), doing="RunPod's clusters").clusters

    def create(self, kind: Kind, body: Mapping[str, Any], *, doing: str) -> str:
        """Id of the new one. Raises CapacityError, QuotaError, NoAnswerError when it may have been made."""
        try:
            made = self._rest.call("POST", f"/v2/{kind}", TypeAdapter(_Made), doing=doing, body=body, repeatable=False)
        except ImpossibleError as error:
            raise CapacityError(str(error)) from None
        return made.id

    def delete(self, kind: Kind, id_: str) -> None:
        """Returns when it was asked for, not when it is gone. Raises NotThereError."""
        self._delete(f"/v2/{kind}/{quote(id_, safe='')}", doing=f"ending RunPod's {kind[:-1]} {id_}")

    def gpus(self, product: Product, count: int, *, afresh: bool = False) -> tuple[GpuType, ...]:
        """The types, and where `count` of one are to be had now; as when this process first asked, or `afresh`.

        Preflight and price must see the same.
        """
        if afresh or (product, count) not in self._stock:
            asked = {"include": "AVAILABILITY", "product": product, "count": str(count), "cloud": "SECURE"}
            path, doing = f"/v2/catalog/gpus?{urlencode(asked)}", "RunPod's catalogue"
            self._stock[product, count] = self._rest.call("GET", path, TypeAdapter(GpuTypes), doing=doing).gpus
        return self._stock[product, count]

    def cluster_rate(self, gpu: str) -> float | None:
        """$ an hour for one GPU of a cluster; None where RunPod tells none. Raises ProviderError."""
        if self._cluster_rates is None:
            self._cluster_rates = self._asked_rates()
        return self._cluster_rates.get(gpu) or None  # 0 is no price

    def _asked_rates(self) -> dict[str, float | None]:
        doing = "RunPod's prices of clusters"
        body = {"query": "query { gpuTypes { id clusterPrice } }"}
        answer = self._rest.call("POST", "/graphql", TypeAdapter(_GraphAnswer), doing=doing, body=body)
        if answer.errors or answer.data is None:
            why = "; ".join(each.message for each in answer.errors) or "an answer without data"
            raise ProviderError(f"{doing}: {why}")
        return {each.id: each.clusterPrice for each in answer.data.gpuTypes}

    def volumes(self) -> tuple[Volume, ...]:
        doing = "RunPod's network volumes"
        return self._rest.call("GET", "/v2/network-volumes", TypeAdapter(Volumes), doing=doing).networkVolumes

    def add_volume(self, name: str, *, size_gb: int, data_center: str) -> str:
        """Raises NoAnswerError when it may have been made."""
        body = {"name": name, "size": size_gb, "dataCenter": data_center}
        doing = f"a network volume of {size_gb} GB in {data_center}"
        path = "/v2/network-volumes"
        return self._rest.call("POST", path, TypeAdapter(_Made), doing=doing, body=body, repeatable=False).id

    def grow_volume(self, id_: str, *, size_gb: int) -> None:
        path, doing = f"/v2/network-volumes/{quote(id_, safe='')}", f"growing network volume {id_} to {size_gb} GB"
        self._rest.call("PATCH", path, TypeAdapter(Volume), doing=doing, body={"size": size_gb})

    def remove_volume(self, id_: str) -> None:
        """Raises NotThereError."""
        self._delete(f"/v2/network-volumes/{quote(id_, safe='')}", doing=f"removing network volume {id_}")

    def _delete(self, path: str, *, doing: str) -> None:
        self._rest.call("DELETE", path, TypeAdapter(None), doing=doing)


def translated(status: int, body: Mapping[str, Any], doing: str) -> ProviderError:
    """RunPod's problem documents {title, status, detail, errors}, sorted by what one can do about them."""
    said = [str(body[key]) for key in ("detail", "title") if body.get(key)][:1]
    more = body.get("errors")
    if isinstance(more, list):
        said += [str(each) for each in more[:3]]
    message = " ".join("; ".join(said).split()).rstrip(".") or "refused without a reason"
    told = f"{doing}: {message} (status {status})"
    if status == 402 or (status in (400, 403) and any(word in message.lower() for word in _NO_CREDIT)):
        return QuotaError(f"{told}: add credit, or ask for a higher spend limit, at console.runpod.io/user/billing")
    if status in (401, 403):
        return AccessError(f"{told}: look at the key in {KEY_VARIABLE}, then repeat the command")
    if status == 404:
        return NotThereError(told)
    if status in (400, 409):
        return ImpossibleError(told)
    return ProviderError(told)


def connect() -> RunPod:
    """By the key of the environment or of RunPod's own file; raises AccessError where there is none."""
    return _client(os.environ.get(URL_VARIABLE) or URL, _key())


@functools.cache
def _client(url: str, key: str) -> RunPod:
    return RunPod(url.rstrip("/"), key)


def _key() -> str:
    if key := os.environ.get(KEY_VARIABLE, "").strip():
        return key
    try:
        found = tomllib.loads(KEY_FILE.expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):
        found = {}
    # runpodctl writes `apikey`, the Python package a section "default" with `api_key`.
    section = found.get("default")
    for told in (found.get("apikey"), section.get("api_key") if isinstance(section, dict) else None):
        if isinstance(told, str) and told.strip():
            return told.strip()
    raise AccessError(
        f"no key for RunPod: make one at console.runpod.io/user/settings and set {KEY_VARIABLE} (or write it into "
        f'{KEY_FILE} as `apikey = "…"`)'
    )
