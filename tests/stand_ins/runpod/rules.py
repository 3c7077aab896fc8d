"""What RunPod takes and refuses, from the published OpenAPI document of its API, version 2 (2026-08)."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Body = dict[str, Any]
_TITLES = {400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 409: "Conflict", 422: "Unprocessable Entity"}
_GRAPH = re.compile(r"query \{ gpuTypes \{ id clusterPrice \} \}")


class Refused(Exception):
    """A problem document."""

    def __init__(self, status: int, detail: str, errors: list[str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.body: Body = {"title": _TITLES.get(status, "Error"), "status": status, "detail": detail}
        if errors:
            self.body["errors"] = errors


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


_Name = Annotated[str, Field(min_length=1)]
_Version = Annotated[str, Field(pattern=r"^\d+\.\d+$")]


class _NetworkMount(_Strict):
    volumeId: str
    path: str


class _PersistentMount(_Strict):
    size: Annotated[int, Field(ge=10)]
    path: str


class _Mounts(_Strict):
    persistent: _PersistentMount | None = None
    network: Annotated[list[_NetworkMount], Field(max_length=1)] = []


class _Gpu(_Strict):
    id: str
    count: Annotated[int, Field(ge=1)] = 1
    allowedCudaVersions: list[_Version] = []
    minCudaVersion: _Version | None = None


class _Container(_Strict):
    args: str = ""
    disk: Annotated[int, Field(ge=1)] = 50
    env: dict[str, str] = {}
    image: str
    ports: list[str] = []
    name: _Name
    dataCenterIds: list[str] = []
    mounts: _Mounts = _Mounts()
    startJupyter: bool = False
    startSsh: bool = False


class _Pod(_Container):
    registry: str | None = None
    cloud: Literal["SECURE", "COMMUNITY"] = "SECURE"
    globalNetworking: bool = False
    gpu: _Gpu  # or cpu, or a template: not served here


class _Compute(_Strict):
    gpuTypeId: _Name
    gpuCountPerPod: Annotated[int, Field(ge=1)]
    podCount: Annotated[int, Field(ge=2, le=250)]


class _Cluster(_Container):
    type: Literal["APPLICATION", "TRAINING", "SLURM", "RAY"]
    compute: _Compute


class _Volume(_Strict):
    name: _Name
    size: Annotated[int, Field(ge=10, le=4096)]
    dataCenter: _Name
    type: Literal["STANDARD", "HIGH_PERFORMANCE"] | None = None


class _Growth(_Strict):
    name: _Name | None = None
    size: Annotated[int, Field(ge=10, le=4096)] | None = None


_KINDS: dict[str, type[_Strict]] = {"pods": _Pod, "clusters": _Cluster, "network-volumes": _Volume, "growth": _Growth}
_MOST_VARIABLES = 50
_PORT = re.compile(r"\d{1,5}/(http|tcp)")


def check(kind: str, body: Body) -> None:
    """Raises Refused with what the schema of such a create doesn't allow."""
    try:
        _KINDS[kind].model_validate(body)
    except ValidationError as error:
        told = [f"$.{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        raise Refused(422, "request validation failed", told) from None
    if any(not _PORT.fullmatch(port) for port in body.get("ports", [])):
        raise Refused(422, "request validation failed", ["$.ports"])
    if len(body.get("env", {})) > _MOST_VARIABLES:  # of the guide; the document tells no limit
        raise Refused(400, "too many environment variables")
    gpu = body.get("gpu", {})
    if gpu.get("allowedCudaVersions") and gpu.get("minCudaVersion"):
        raise Refused(400, "allowedCudaVersions and minCudaVersion are mutually exclusive")
    mounts = body.get("mounts", {})
    if mounts.get("persistent") and mounts.get("network"):
        raise Refused(400, "persistent and network are mutually exclusive")


def check_catalogue(query: dict[str, str]) -> None:
    known = {"include", "product", "count", "cloud", "countryCodes", "cudaVersions", "minCudaVersion"}
    if unknown := set(query) - known:
        raise Refused(422, "request validation failed", [f"query: {unknown}"])
    if query.get("include") == "AVAILABILITY" and query.get("product") not in ("POD", "CLUSTER", "SERVERLESS"):
        raise Refused(400, "include=AVAILABILITY requires product")
    if query.get("cloud", "SECURE") not in ("SECURE", "COMMUNITY") or not query.get("count", "1").isdigit():
        raise Refused(422, "request validation failed", ["query"])


def is_known_query(body: Body) -> bool:
    """Of the GraphQL API, as much as is known here."""
    return set(body) == {"query"} and _GRAPH.fullmatch(" ".join(str(body["query"]).split())) is not None
