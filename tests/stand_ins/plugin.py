"""What the stand-ins for the engine's plug-ins share: calls that ask no cloud, values on the wire, and serving."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import grpc  # type: ignore[import-untyped]
from google.protobuf import json_format, struct_pb2  # type: ignore[import-untyped]
from google.protobuf.empty_pb2 import Empty  # type: ignore[import-untyped]
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc

Values = dict[str, Any]
Kind = TypeVar("Kind")


class Plugin(provider_pb2_grpc.ResourceProviderServicer, Generic[Kind]):  # type: ignore[misc]
    """One provider instance; the engine starts a process for each."""

    cloud: str
    """For messages: "AWS"."""
    sdk: str
    """The package whose version it has: "pulumi-aws"."""
    kinds: Mapping[str, Kind]
    """By the type's token."""

    def GetPluginInfo(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        return plugin_pb2.PluginInfo(version=importlib.metadata.version(self.sdk))

    def GetSchema(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        return provider_pb2.GetSchemaResponse(schema="{}")

    def DiffConfig(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        return provider_pb2.DiffResponse()

    def Invoke(self, request: Any, context: Any) -> Any:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, f"the stand-in for {self.cloud} has no functions: {request.tok}")

    def Cancel(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        return Empty()

    def kind(self, token: str, context: Any) -> Kind:
        found = self.kinds.get(token)
        if found is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, f"the stand-in for {self.cloud} doesn't serve {token}")
        assert found is not None
        return found


def token_of(urn: str) -> str:
    return urn.split("::")[2].split("$")[-1]


def changed(olds: Values, news: Values) -> set[str]:
    """Names of the inputs that differ."""
    return {key for key in {*olds, *news} if not key.startswith("__") and olds.get(key) != news.get(key)}


def values(struct: Any) -> Values:
    return {key: _whole(value) for key, value in json_format.MessageToDict(struct).items()} if struct else {}


def struct(values: Values) -> Any:
    made = struct_pb2.Struct()
    made.update(values)
    return made


def check_failures(wrong: list[tuple[str, str]]) -> list[Any]:
    return [provider_pb2.CheckFailure(property=where, reason=reason) for where, reason in wrong]


def serve(plugin: Plugin[Any]) -> None:
    """Serve until the engine interrupts us or is gone."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    engine = os.getppid()
    server = grpc.server(ThreadPoolExecutor(max_workers=16))
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(plugin, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    while not ended.wait(timeout=0.5) and os.getppid() == engine:
        pass
    sys.stdout.flush()
    os._exit(0)  # a call that hangs in the stand-in must not keep us


def _whole(value: Any) -> Any:
    """A Struct has only floats; the clouds and the SDKs' types know whole numbers."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return {key: _whole(each) for key, each in value.items()} if isinstance(value, dict) else value
