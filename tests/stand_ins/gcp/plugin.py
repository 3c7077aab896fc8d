"""`pulumi-resource-gcp` for tests: serves the real pulumi_gcp SDK through the real engine, by REST on the stand-in.

Does: Check against the SDK's own argument classes (schema.py), previews with unknowns, made-up names, default and
attribution labels, replacement and update, refresh, deletion where "not found" is success and "in use" is tried again
a few times. Project, region and zone: the resource's own, the provider's, GOOGLE_PROJECT, _REGION, _ZONE.
Can't: functions (`gcp.compute.get_...`), `pulumi import`, secrets in state (a secret input's output is plain), types
that aren't in KINDS, changes in place but those in KINDS (all others replace), and outputs that neither Google's
answer nor the inputs name: those are None after `up`, though unknown in a preview. After a failed create nothing is
kept in the state, as the real one does when the operation fails.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import secrets
from collections.abc import Callable
from typing import Any

import grpc  # type: ignore[import-untyped]
from google.auth.exceptions import GoogleAuthError
from google.protobuf.empty_pb2 import Empty  # type: ignore[import-untyped]
from pulumi.runtime.proto import provider_pb2
from pulumi.runtime.rpc import UNKNOWN
from requests import RequestException

from tests.stand_ins import schema
from tests.stand_ins.gcp.bodies import Unserved
from tests.stand_ins.gcp.kinds import KINDS, Kind
from tests.stand_ins.gcp.rest import NotFound, Refused, Rest
from tests.stand_ins.plugin import Plugin, Values, changed, check_failures, serve, struct, token_of, values

FAILURES = (Refused, Unserved, GoogleAuthError, RequestException, KeyError, ValueError)
ATTRIBUTION = {"goog-pulumi-provisioned": "true"}


class Provider(Plugin[Kind]):
    """GCP, by REST."""

    cloud, sdk, kinds = "GCP", "pulumi-gcp", KINDS

    def __init__(self) -> None:
        self._places = {key: os.environ.get(f"GOOGLE_{key.upper()}", "") for key in ("project", "region", "zone")}
        self._default_labels: dict[str, str] = dict(ATTRIBUTION)

    @functools.cached_property
    def _rest(self) -> Rest:
        return Rest()

    def CheckConfig(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        return provider_pb2.CheckResponse(inputs=request.news)

    def Configure(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        config = values(request.args)
        self._places |= {key: config[key] for key in self._places if config.get(key)}
        if config.get("addPulumiAttributionLabel") in (False, "false"):
            self._default_labels = {}
        labels = config.get("defaultLabels") or {}
        self._default_labels |= json.loads(labels) if isinstance(labels, str) else labels
        return provider_pb2.ConfigureResponse(acceptSecrets=False, supportsPreview=True)

    def Check(self, request: Any, context: Any) -> Any:
        token = token_of(request.urn)
        kind = self.kind(token, context)
        inputs, olds = values(request.news), values(request.olds)
        if "name" in schema.of(token).outputs and _takes_name(token) and not inputs.get("name"):
            inputs["name"] = olds.get("name") or _name(request.urn, request.randomSeed, kind)
            inputs["__defaults"] = ["name"]
        wrong = schema.failures(token, inputs)
        full = self._full(token, inputs)
        wrong += [(key, f"{key}: required field is not set") for key in _places(kind) if not full.get(key)]
        return provider_pb2.CheckResponse(inputs=struct(inputs), failures=check_failures(wrong))

    def Diff(self, request: Any, context: Any) -> Any:
        token = token_of(request.urn)
        kind = self.kind(token, context)
        olds, news, state = values(request.old_inputs), values(request.news), values(request.olds)
        differing = changed(olds, news)
        if kind.labelled and self._labels(news) != state.get("effectiveLabels"):
            differing.add("labels")  # somebody else changed them, or the default labels are others
        replaces = {key for key in differing if key not in kind.patched and not (kind.labelled and key == "labels")}
        replaces -= {"allowStoppingForUpdate", "deletionPolicy"}
        answer = provider_pb2.DiffResponse
        return answer(
            changes=answer.DIFF_SOME if differing else answer.DIFF_NONE,
            diffs=sorted(differing),
            replaces=sorted(replaces),
            deleteBeforeReplace=bool(replaces) and olds.get("name") == news.get("name"),
        )

    def Create(self, request: Any, context: Any) -> Any:
        token = token_of(request.urn)
        kind, inputs = self.kind(token, context), values(request.properties)
        full = self._full(token, inputs)
        if request.preview:
            unknown = dict.fromkeys(schema.of(token).outputs, UNKNOWN)
            return provider_pb2.CreateResponse(properties=struct({**unknown, **full}))

        def create() -> tuple[str, Values]:
            identity = kind.create(self._rest, full)
            return identity, kind.read(self._rest, identity, full)

        identity, found = _told(context, f"creating {token}", create)
        return provider_pb2.CreateResponse(id=identity, properties=struct(_state(token, full, found)))

    def Read(self, request: Any, context: Any) -> Any:
        token, state = token_of(request.urn), values(request.properties)
        kind = self.kind(token, context)

        def read() -> Values | None:
            try:
                return kind.read(self._rest, request.id, state)
            except NotFound:
                return None

        found = _told(context, f"reading {token} {request.id}", read)
        if found is None:
            return provider_pb2.ReadResponse(id="")
        properties = struct(_state(token, state, found))
        return provider_pb2.ReadResponse(id=request.id, properties=properties, inputs=request.inputs)

    def Update(self, request: Any, context: Any) -> Any:
        token = token_of(request.urn)
        kind, news, olds = self.kind(token, context), values(request.news), values(request.old_inputs)
        full = self._full(token, news)
        if request.preview:
            return provider_pb2.UpdateResponse(properties=struct({**values(request.olds), **full}))

        def update() -> Values:
            differing = changed(olds, news)
            if kind.labelled and self._labels(news) != values(request.olds).get("effectiveLabels"):
                differing.add("labels")
            kind.update(self._rest, request.id, differing, full)
            return kind.read(self._rest, request.id, full)

        found = _told(context, f"updating {token} {request.id}", update)
        return provider_pb2.UpdateResponse(properties=struct(_state(token, full, found)))

    def Delete(self, request: Any, context: Any) -> Any:
        token, state = token_of(request.urn), values(request.properties)
        kind = self.kind(token, context)

        def delete() -> None:
            try:
                kind.delete(self._rest, request.id, state)
            except NotFound:
                return

        _told(context, f"deleting {token} {request.id}", delete)
        return Empty()

    # -- values -----------------------------------------------------------------------------------------------------

    def _labels(self, inputs: Values) -> Values:
        own = inputs.get("labels") or {}
        return {**self._default_labels, **(own if isinstance(own, dict) else {})}

    def _full(self, token: str, inputs: Values) -> Values:
        """The inputs with the provider's places and labels."""
        kind = KINDS[token]
        full = {key: value for key, value in inputs.items() if not key.startswith("__")}
        for key in _places(kind):
            full[key] = inputs.get(key) or self._places[key]
        if kind.labelled:
            full["labels"] = self._labels(inputs)
        return full


def _places(kind: Kind) -> list[str]:
    if kind.api == "file":
        return ["project"]  # its location is an argument of its own
    return ["project"] if kind.scope == "global" else ["project", kind.scope]


def _takes_name(token: str) -> bool:
    return "name" in schema.of(token).inputs


def _state(token: str, inputs: Values, found: Values) -> Values:
    """Inputs, and over them what Google says of the type's other properties; an input keeps its own form."""
    told = KINDS[token].outputs(found, inputs)
    outputs = schema.of(token).outputs
    computed = {"networkInterfaces", "networks", "effectiveLabels", "currentStatus"}
    own = {key: value for key, value in told.items() if key in outputs and (key not in inputs or key in computed)}
    return {**inputs, **own}


def _name(urn: str, seed: bytes, kind: Kind) -> str:
    """The resource's name in lower case and 7 hex digits, as the real provider makes names up."""
    digits = hashlib.sha256(seed or secrets.token_bytes(16)).hexdigest()[:7]
    base = urn.split("::")[-1].lower().replace("_", "-")
    return f"{base[: kind.longest_name - 8]}-{digits}"


def _told(context: Any, doing: str, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except FAILURES as error:
        return context.abort(grpc.StatusCode.UNKNOWN, f"{doing}: {error}")


if __name__ == "__main__":
    for package in {token.split(":")[1].split("/")[0] for token in KINDS}:
        schema.import_alone("pulumi_gcp", package)
    serve(Provider())
