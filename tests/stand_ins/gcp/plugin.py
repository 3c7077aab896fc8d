"""`pulumi-resource-gcp` for tests: serves the real pulumi_gcp SDK through the real engine, by REST on the stand-in.

Does: Check against the SDK's own argument classes (arguments.py), previews with unknowns, made-up names, default and
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
import importlib.metadata
import json
import os
import secrets
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc  # type: ignore[import-untyped]
from google.auth.exceptions import GoogleAuthError
from google.protobuf import json_format, struct_pb2  # type: ignore[import-untyped]
from google.protobuf.empty_pb2 import Empty  # type: ignore[import-untyped]
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc
from pulumi.runtime.rpc import UNKNOWN
from requests import RequestException

from tests.stand_ins.gcp import arguments
from tests.stand_ins.gcp.bodies import Unserved
from tests.stand_ins.gcp.kinds import KINDS, Kind
from tests.stand_ins.gcp.rest import NotFound, Refused, Rest

FAILURES = (Refused, Unserved, GoogleAuthError, RequestException, KeyError, ValueError)
ATTRIBUTION = {"goog-pulumi-provisioned": "true"}
Values = dict[str, Any]


class Provider(provider_pb2_grpc.ResourceProviderServicer):
    """One provider instance; the engine starts a process for each."""

    def __init__(self) -> None:
        self._places = {key: os.environ.get(f"GOOGLE_{key.upper()}", "") for key in ("project", "region", "zone")}
        self._default_labels: dict[str, str] = dict(ATTRIBUTION)

    @functools.cached_property
    def _rest(self) -> Rest:
        return Rest()

    def GetPluginInfo(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        return plugin_pb2.PluginInfo(version=importlib.metadata.version("pulumi_gcp"))

    def GetSchema(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        return provider_pb2.GetSchemaResponse(schema="{}")

    def CheckConfig(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        return provider_pb2.CheckResponse(inputs=request.news)

    def DiffConfig(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        return provider_pb2.DiffResponse()

    def Configure(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        config = _values(request.args)
        self._places |= {key: config[key] for key in self._places if config.get(key)}
        if config.get("addPulumiAttributionLabel") in (False, "false"):
            self._default_labels = {}
        labels = config.get("defaultLabels") or {}
        self._default_labels |= json.loads(labels) if isinstance(labels, str) else labels
        return provider_pb2.ConfigureResponse(acceptSecrets=False, supportsPreview=True)

    def Invoke(self, request: Any, context: Any) -> Any:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, f"the stand-in for GCP serves no functions: {request.tok}")

    def Cancel(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        return Empty()

    def Check(self, request: Any, context: Any) -> Any:
        token = _token(request.urn)
        kind = _kind(token, context)
        inputs, olds = _values(request.news), _values(request.olds)
        if "name" in arguments.of(token).outputs and _takes_name(token) and not inputs.get("name"):
            inputs["name"] = olds.get("name") or _name(request.urn, request.randomSeed, kind)
            inputs["__defaults"] = ["name"]
        wrong = arguments.failures(token, inputs)
        full = self._full(token, inputs)
        wrong += [(key, f"{key}: required field is not set") for key in _places(kind) if not full.get(key)]
        failures = [provider_pb2.CheckFailure(property=where, reason=reason) for where, reason in wrong]
        return provider_pb2.CheckResponse(inputs=_struct(inputs), failures=failures)

    def Diff(self, request: Any, context: Any) -> Any:
        token = _token(request.urn)
        kind = _kind(token, context)
        olds, news, state = _values(request.old_inputs), _values(request.news), _values(request.olds)
        changed = _changed(olds, news)
        if kind.labelled and self._labels(news) != state.get("effectiveLabels"):
            changed.add("labels")  # somebody else changed them, or the default labels are others
        replaces = {key for key in changed if key not in kind.patched and not (kind.labelled and key == "labels")}
        replaces -= {"allowStoppingForUpdate", "deletionPolicy"}
        answer = provider_pb2.DiffResponse
        return answer(
            changes=answer.DIFF_SOME if changed else answer.DIFF_NONE,
            diffs=sorted(changed),
            replaces=sorted(replaces),
            deleteBeforeReplace=bool(replaces) and olds.get("name") == news.get("name"),
        )

    def Create(self, request: Any, context: Any) -> Any:
        token = _token(request.urn)
        kind, inputs = _kind(token, context), _values(request.properties)
        full = self._full(token, inputs)
        if request.preview:
            unknown = dict.fromkeys(arguments.of(token).outputs, UNKNOWN)
            return provider_pb2.CreateResponse(properties=_struct({**unknown, **full}))

        def create() -> tuple[str, Values]:
            identity = kind.create(self._rest, full)
            return identity, kind.read(self._rest, identity, full)

        identity, found = _told(context, f"creating {token}", create)
        return provider_pb2.CreateResponse(id=identity, properties=_struct(_state(token, full, found)))

    def Read(self, request: Any, context: Any) -> Any:
        token, state = _token(request.urn), _values(request.properties)
        kind = _kind(token, context)

        def read() -> Values | None:
            try:
                return kind.read(self._rest, request.id, state)
            except NotFound:
                return None

        found = _told(context, f"reading {token} {request.id}", read)
        if found is None:
            return provider_pb2.ReadResponse(id="")
        properties = _struct(_state(token, state, found))
        return provider_pb2.ReadResponse(id=request.id, properties=properties, inputs=request.inputs)

    def Update(self, request: Any, context: Any) -> Any:
        token = _token(request.urn)
        kind, news, olds = _kind(token, context), _values(request.news), _values(request.old_inputs)
        full = self._full(token, news)
        if request.preview:
            return provider_pb2.UpdateResponse(properties=_struct({**_values(request.olds), **full}))

        def update() -> Values:
            changed = _changed(olds, news)
            if kind.labelled and self._labels(news) != _values(request.olds).get("effectiveLabels"):
                changed.add("labels")
            kind.update(self._rest, request.id, changed, full)
            return kind.read(self._rest, request.id, full)

        found = _told(context, f"updating {token} {request.id}", update)
        return provider_pb2.UpdateResponse(properties=_struct(_state(token, full, found)))

    def Delete(self, request: Any, context: Any) -> Any:
        token, state = _token(request.urn), _values(request.properties)
        kind = _kind(token, context)

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
    from pulumi._types import input_type_types

    return "name" in input_type_types(arguments.of(token).arguments)


def _state(token: str, inputs: Values, found: Values) -> Values:
    """Inputs, and over them what Google says of the type's other properties; an input keeps its own form."""
    told = KINDS[token].outputs(found, inputs)
    outputs = arguments.of(token).outputs
    computed = {"networkInterfaces", "networks", "effectiveLabels", "currentStatus"}
    own = {key: value for key, value in told.items() if key in outputs and (key not in inputs or key in computed)}
    return {**inputs, **own}


def _changed(olds: Values, news: Values) -> set[str]:
    return {key for key in {*olds, *news} if not key.startswith("__") and olds.get(key) != news.get(key)}


def _kind(token: str, context: Any) -> Kind:
    kind = KINDS.get(token)
    if kind is None:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, f"the stand-in for GCP doesn't serve {token}")
    assert kind is not None
    return kind


def _token(urn: str) -> str:
    return urn.split("::")[2].split("$")[-1]


def _name(urn: str, seed: bytes, kind: Kind) -> str:
    """The resource's name in lower case and 7 hex digits, as the real provider makes names up."""
    digits = hashlib.sha256(seed or secrets.token_bytes(16)).hexdigest()[:7]
    base = urn.split("::")[-1].lower().replace("_", "-")
    return f"{base[: kind.longest_name - 8]}-{digits}"


def _values(struct: Any) -> Values:
    return {key: _whole(value) for key, value in json_format.MessageToDict(struct).items()}


def _whole(value: Any) -> Any:
    """A Struct has only floats; Google and the SDK's types know whole numbers."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return {key: _whole(each) for key, each in value.items()} if isinstance(value, dict) else value


def _struct(values: Values) -> Any:
    struct = struct_pb2.Struct()
    struct.update(values)
    return struct


def _told(context: Any, doing: str, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except FAILURES as error:
        return context.abort(grpc.StatusCode.UNKNOWN, f"{doing}: {error}")


def serve() -> None:
    """Serve until the engine interrupts us or is gone."""
    for package in {token.split(":")[1].split("/")[0] for token in KINDS}:
        arguments.import_alone(package)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    engine = os.getppid()
    server = grpc.server(ThreadPoolExecutor(max_workers=16))
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(Provider(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    while not ended.wait(timeout=0.5) and os.getppid() == engine:
        pass
    os._exit(0)  # a call that hangs in the stand-in must not keep us


if __name__ == "__main__":
    serve()
