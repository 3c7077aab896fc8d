"""`pulumi-resource-aws` for tests: serves the real pulumi_aws SDK through the real engine, by boto3 on the stand-in.

Does: Check against the SDK's own argument classes (schema.py), previews with unknowns, names made up as the real one
does, replacement and update, refresh, deletion with a bounded retry while something depends, a state entry for what
was created and then failed. Region: the resource's own, the provider's, AWS_REGION.
Can't: functions (`aws.get_…`), `pulumi import`, secrets in state (a secret input's output is plain), types that aren't
in KINDS, and outputs beyond what AWS's answer names: those are None after `up`, though unknown in a preview.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable
from typing import Any

import grpc  # type: ignore[import-untyped]
from botocore.exceptions import BotoCoreError, ClientError
from google.protobuf import any_pb2  # type: ignore[import-untyped]
from google.protobuf.empty_pb2 import Empty  # type: ignore[import-untyped]
from pulumi.runtime.proto import provider_pb2
from pulumi.runtime.rpc import UNKNOWN

from tests.stand_ins import schema
from tests.stand_ins.aws import kinds_iam, kinds_machines, kinds_network, kinds_security, kinds_storage
from tests.stand_ins.aws.resources import Aws, Kind, Unserved, code, poll
from tests.stand_ins.plugin import Plugin, Values, changed, check_failures, serve, struct, token_of, values

KINDS: dict[str, Kind] = {
    **kinds_network.KINDS,
    **kinds_security.KINDS,
    **kinds_machines.KINDS,
    **kinds_storage.KINDS,
    **kinds_iam.KINDS,
}
IN_USE = ("DependencyViolation", "DeleteConflict", "FileSystemInUse", "InvalidGroup.InUse")
DELETIONS, BETWEEN_S = 10, 0.2
FAILURES = (ClientError, BotoCoreError, Unserved, NotImplementedError, RuntimeError, TimeoutError, ValueError)


class Provider(Plugin[Kind]):
    """AWS, by boto3."""

    cloud, sdk, kinds = "AWS", "pulumi-aws", KINDS

    def __init__(self) -> None:
        self._region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""
        self._default_tags: dict[str, str] = {}

    def CheckConfig(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        config = values(request.news)
        wrong = _configuration_failures(config)
        if not (config.get("region") or self._region):
            wrong.append(("region", "Missing region configuration"))
        return provider_pb2.CheckResponse(inputs=request.news, failures=check_failures(wrong))

    def Configure(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        config = values(request.args)
        self._region = config.get("region") or self._region
        default = config.get("defaultTags") or {}
        default = json.loads(default) if isinstance(default, str) else default
        self._default_tags = dict(default.get("tags") or {})
        return provider_pb2.ConfigureResponse(
            acceptSecrets=False, supportsPreview=True, acceptResources=False, acceptOutputs=False
        )

    def Check(self, request: Any, context: Any) -> Any:
        token = token_of(request.urn)
        kind = self.kind(token, context)
        inputs, olds = values(request.news), values(request.olds)
        if kind.auto_name is not None and not inputs.get(kind.auto_name):
            name = kind.auto_name
            prefix = inputs.get(f"{name}Prefix")
            made = _name(request.urn, prefix, request.randomSeed, kind)
            inputs[name] = olds.get(name) if name in (olds.get("__defaults") or []) else made
            inputs["__defaults"] = [name]
        wrong = schema.failures(token, inputs)
        return provider_pb2.CheckResponse(inputs=struct(inputs), failures=check_failures(wrong))

    def Diff(self, request: Any, context: Any) -> Any:
        kind = self.kind(token_of(request.urn), context)
        olds, news, state = values(request.old_inputs), values(request.news), values(request.olds)
        differing = changed(olds, news)
        if kind.tag is not None and "tags" not in differing and self._tags(news) != (state.get("tagsAll") or {}):
            differing.add("tags")  # someone else changed them, or the default tags are others
        replaces = [key for key in differing if key in kind.replace or key == "region"]
        same_name = kind.auto_name is not None and olds.get(kind.auto_name) == news.get(kind.auto_name)
        answer = provider_pb2.DiffResponse
        return answer(
            changes=answer.DIFF_SOME if differing else answer.DIFF_NONE,
            diffs=sorted(differing),
            replaces=sorted(replaces),
            deleteBeforeReplace=bool(replaces) and same_name and not news.get("__defaults"),
        )

    def Create(self, request: Any, context: Any) -> Any:
        token, inputs = token_of(request.urn), values(request.properties)
        kind = self.kind(token, context)
        if request.preview:
            return provider_pb2.CreateResponse(properties=struct(self._previewed(token, inputs)))
        aws = Aws(inputs.get("region") or self._region)
        tags = self._tags(inputs) if kind.tag is not None else {}
        done = _told(context, f"creating {token}", lambda: kind.create(aws, inputs, tags))
        try:
            if kind.settle is not None:
                kind.settle(aws, done, inputs)
            poll(done, lambda: kind.read(aws, done, inputs) is not None)
        except FAILURES as error:
            _init_failed(context, done, self._state(aws, token, inputs, {}), inputs, _text(error))
        found = _told(context, f"reading {token}", lambda: kind.read(aws, done, inputs))
        state = self._state(aws, token, inputs, found or {})
        return provider_pb2.CreateResponse(id=done, properties=struct(state))

    def Read(self, request: Any, context: Any) -> Any:
        token, state = token_of(request.urn), values(request.properties)
        kind = self.kind(token, context)
        aws = Aws(state.get("region") or self._region)
        found = _told(context, f"reading {token} {request.id}", lambda: kind.read(aws, request.id, state))
        if found is None:
            return provider_pb2.ReadResponse(id="")
        now = self._state(aws, token, state, found)
        return provider_pb2.ReadResponse(id=request.id, properties=struct(now), inputs=request.inputs)

    def Update(self, request: Any, context: Any) -> Any:
        token, news, olds = token_of(request.urn), values(request.news), values(request.old_inputs)
        state = values(request.olds)
        kind = self.kind(token, context)
        if request.preview:
            return provider_pb2.UpdateResponse(properties=struct({**state, **self._previewed(token, news, state)}))
        aws = Aws(state.get("region") or self._region)

        def update() -> Values | None:
            differing = changed(olds, news)
            others = differing - {"tags"} - set(kind.state_only) - set(kind.updates)
            if others:
                raise Unserved(f"the stand-in can't change {', '.join(sorted(others))} of a {token} in place")
            for change in dict.fromkeys(kind.updates[key] for key in sorted(differing) if key in kind.updates):
                change(aws, request.id, olds, news)
            if kind.tag is not None:
                kind.tag(aws, request.id, state.get("tagsAll") or {}, self._tags(news))
            return kind.read(aws, request.id, {**state, **news})

        found = _told(context, f"updating {token} {request.id}", update)
        return provider_pb2.UpdateResponse(properties=struct(self._state(aws, token, news, found or {})))

    def Delete(self, request: Any, context: Any) -> Any:
        token, state = token_of(request.urn), values(request.properties)
        kind = self.kind(token, context)
        aws = Aws(state.get("region") or self._region)

        def delete() -> None:
            for attempt in range(1, DELETIONS + 1):
                try:
                    kind.delete(aws, request.id, state)
                    return
                except ClientError as error:
                    in_use = code(error) in IN_USE or code(error).endswith(".InUse")
                    if not in_use or attempt == DELETIONS:
                        raise
                time.sleep(BETWEEN_S)

        _told(context, f"deleting {token} {request.id}", delete)
        return Empty()

    # -- values -----------------------------------------------------------------------------------------------------

    def _tags(self, inputs: Values) -> dict[str, str]:
        own = inputs.get("tags") or {}
        return {**self._default_tags, **(own if isinstance(own, dict) else {})}

    def _previewed(self, token: str, inputs: Values, state: Values | None = None) -> Values:
        """What is known before it is done: the inputs; all else is unknown, or stays as it is in an update."""
        known = {**inputs, "region": inputs.get("region") or self._region}
        if KINDS[token].tag is not None:
            known["tagsAll"] = UNKNOWN if inputs.get("tags") == UNKNOWN else self._tags(inputs)
        unknown = {} if state else dict.fromkeys(schema.of(token).outputs, UNKNOWN)
        return {**unknown, **{key: value for key, value in known.items() if value is not None}}

    def _state(self, aws: Aws, token: str, inputs: Values, found: Values) -> Values:
        """Inputs, and over them what AWS says of the type's own properties; an input keeps its own form."""
        outputs = schema.of(token).outputs
        own = {"tagsAll", *(outputs - inputs.keys())}
        told = {key: value for key, value in found.items() if key in own}
        refreshed = {key: found[key] for key in inputs if key in found and type(found[key]) is type(inputs[key])}
        state = {**inputs, **refreshed, **told}
        if "region" in outputs:
            state["region"] = inputs.get("region") or aws.region
        return state


def _configuration_failures(config: Values) -> list[tuple[str, str]]:
    """(property, reason) of each wrong key in the provider's own configuration."""
    if config.keys() <= {"region", "defaultTags", "version", *schema.INTERNAL}:
        return []  # without the second that the import takes
    from pulumi._types import input_type_types
    from pulumi_aws.provider import ProviderArgs

    known = {*input_type_types(ProviderArgs), "version", "pluginDownloadURL", *schema.INTERNAL}
    return [(key, f"the provider has no option {key!r}") for key in config if key not in known]


def _name(urn: str, prefix: str | None, seed: bytes, kind: Kind) -> str:
    """The engine's name and 7 hex digits, as the real provider makes names up."""
    digits = hashlib.sha256(seed or secrets.token_bytes(16)).hexdigest()[:7]
    base = prefix or urn.split("::")[-1] + "-"
    if kind.auto_name == "bucket":
        base = base.lower()
    return base[: kind.longest_name - len(digits)] + digits


def _text(error: Exception) -> str:
    if isinstance(error, ClientError):
        said = error.response["Error"]
        return f"operation error {error.operation_name}: api error {said['Code']}: {said.get('Message')}"
    return f"{type(error).__name__}: {error}"


def _told(context: Any, doing: str, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except FAILURES as error:
        return context.abort(grpc.StatusCode.UNKNOWN, f"{doing}: {_text(error)}")


def _init_failed(context: Any, done: str, state: Values, inputs: Values, reason: str) -> None:
    """Created, but not as it should be: the engine keeps the resource in its state."""
    detail = provider_pb2.ErrorResourceInitFailed(
        id=done, properties=struct(state), inputs=struct(inputs), reasons=[reason]
    )
    packed = any_pb2.Any(
        type_url="type.googleapis.com/pulumirpc.ErrorResourceInitFailed", value=detail.SerializeToString()
    )
    # Here, since a process that has Google's own google.rpc.Status (pytest's) can't take Pulumi's copy as well.
    from pulumi.runtime.proto import status_pb2

    status = status_pb2.Status(code=grpc.StatusCode.UNKNOWN.value[0], message=reason, details=[packed])
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(grpc.StatusCode.UNKNOWN, reason)


if __name__ == "__main__":
    serve(Provider())
