"""A Pulumi language host for Python: what the engine starts to run our program, when the CLI was built from Go modules.

The official download brings `pulumi-language-python`; its source isn't among the Go modules. The engine needs of it:
print a port, answer a few questions, and in `Run` start `pulumi-language-python-exec` (a script of Pulumi's SDK module)
on the program. Started by .trainstack/bin/pulumi-language-python as

    <root>/.venv/bin/python -P -u language_host.py <exec script> [the engine's own arguments]

It stands alone (the SDK's gRPC stubs and the standard library), so that it runs for any project and from any folder.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc  # type: ignore[import-untyped]
from google.protobuf.empty_pb2 import Empty  # type: ignore[import-untyped]
from pulumi.runtime.proto import language_pb2, language_pb2_grpc, plugin_pb2

# pulumi-language-python-exec's exit code for "failed, and the user has been told why".
TOLD_THE_USER = 32
MAX_MESSAGE_BYTES = 400 * 1024 * 1024


class LanguageHost(language_pb2_grpc.LanguageRuntimeServicer):
    """One program at a time, run by this interpreter."""

    def __init__(self, exec_script: str) -> None:
        self._exec_script = exec_script
        self._engine_address = ""
        self._child: subprocess.Popen[bytes] | None = None
        self._cancelled = False
        self._lock = threading.Lock()

    def Handshake(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        self._engine_address = request.engine_address
        return language_pb2.LanguageHandshakeResponse()

    def GetPluginInfo(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        return plugin_pb2.PluginInfo(version=importlib.metadata.version("pulumi"))

    def GetRequiredPackages(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        # None in advance: the engine fetches a provider's plug-in when the program first uses it.
        return language_pb2.GetRequiredPackagesResponse()

    def About(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        return language_pb2.AboutResponse(executable=sys.executable, version=platform.python_version())

    def GetProgramDependencies(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        installed = {found.name: found.version for found in importlib.metadata.distributions() if found.name}
        return language_pb2.GetProgramDependenciesResponse(
            dependencies=[language_pb2.DependencyInfo(name=name, version=installed[name]) for name in sorted(installed)]
        )

    def InstallDependencies(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: ARG002
        yield language_pb2.InstallDependenciesResponse(stdout=b"The program's packages come with `make setup`.\n")

    def RuntimeOptionsPrompts(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        return language_pb2.RuntimeOptionsResponse()

    def Run(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        """Run the program to its end."""
        with self._lock:
            if self._cancelled:
                return language_pb2.RunResponse(bail=True)
            # Same process group as ours: the engine interrupts and kills that group.
            self._child = subprocess.Popen(
                self._command(request),
                cwd=request.info.program_directory or request.pwd or None,
                env=_child_environment(request),
                stdin=subprocess.DEVNULL,
            )
        code = self._child.wait()
        if code == 0:
            return language_pb2.RunResponse()
        if code == TOLD_THE_USER or self._cancelled:
            return language_pb2.RunResponse(bail=True)
        ending = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return language_pb2.RunResponse(error=f"The Pulumi program ended {ending}")

    def Cancel(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        self.stop()
        return Empty()

    def stop(self) -> None:
        """End the program that runs, if any, and start none from now on."""
        with self._lock:
            self._cancelled = True
            child = self._child
        if child is None or child.poll() is not None:
            return
        child.terminate()
        try:
            child.wait(timeout=2)
        except subprocess.TimeoutExpired:
            child.kill()

    def _command(self, request: Any) -> list[str]:
        flags = {
            "monitor": request.monitor_address,
            "engine": self._engine_address,
            "project": request.project,
            "root_directory": request.info.root_directory,
            "stack": request.stack,
            "parallel": str(request.parallel),
            "pwd": request.pwd,
            "dry_run": "true" if request.dryRun else "false",
            "organization": request.organization,
        }
        # "--name=value", so that a value that starts with a dash stays a value.
        options = [f"--{name}={value}" for name, value in flags.items() if value]
        program = os.path.normpath(os.path.join(request.info.program_directory, request.info.entry_point or "."))  # noqa: PTH118
        return [sys.executable, "-u", self._exec_script, *options, "--", program, *request.args]


def _child_environment(request: Any) -> dict[str, str]:
    """Configuration goes by the environment: other users of the machine can read an argument list, but not this."""
    environment = dict(os.environ)
    environment["PULUMI_CONFIG"] = json.dumps(dict(request.config))
    environment["PULUMI_CONFIG_SECRET_KEYS"] = json.dumps(list(request.configSecretKeys))
    return environment


def serve(exec_script: str) -> None:
    """Serve until the engine interrupts us or is gone."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    engine = os.getppid()
    host = LanguageHost(exec_script)
    sizes = [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ]
    server = grpc.server(ThreadPoolExecutor(max_workers=8), options=sizes)
    language_pb2_grpc.add_LanguageRuntimeServicer_to_server(host, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    # An engine that was killed interrupts nobody: then our parent is another process.
    while not ended.wait(timeout=1) and os.getppid() == engine:
        pass
    host.stop()
    server.stop(grace=0).wait()


if __name__ == "__main__":
    serve(sys.argv[1])
