"""A Fleet without SSH: each node is a folder, each remote command a local process with a bare environment.

Same interface and the same errors as bootstrap.fleet where the launcher uses them; `cut` makes a node unreachable and
breaks its open streams, as a lost connection does.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bootstrap.errors import BootstrapError, ConnectError, ConnectionLost, RemoteError, SeveralNodes, WorkError
from infra.cluster import Cluster, Node
from infra.errors import InfraError


@dataclass(frozen=True)
class Completed:
    exit_code: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True)
class Outcomes:
    results: dict[str, Any]
    errors: dict[str, BootstrapError]

    def require(self, what: str) -> dict[str, Any]:
        if len(self.errors) == 1:
            error = next(iter(self.errors.values()))
            raise error.cause if isinstance(error, WorkError) else error
        if self.errors:
            raise SeveralNodes(what, self.errors)
        return self.results


class LocalShell:
    def __init__(self, node: Node, fleet: LocalFleet) -> None:
        self.node, self._fleet = node, fleet
        self.streams: list[subprocess.Popen[bytes]] = []

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60,
        check: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        self._reach()
        done = subprocess.run(
            list(argv),
            input=stdin,
            capture_output=True,
            timeout=timeout_s,
            env=self._env() | dict(env or {}),
            cwd="/",
            check=False,
        )
        if check and done.returncode:
            raise RemoteError(self.node.name, argv[0], exit_code=done.returncode, stderr=done.stderr)
        return Completed(done.returncode, done.stdout, done.stderr)

    def stream(
        self,
        argv: Sequence[str],
        on_output: Callable[[bytes], None],
        *,
        stdin: bytes = b"",  # noqa: ARG002
        timeout_s: float | None = None,  # noqa: ARG002
    ) -> int:
        self._reach()
        process = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=self._env(), cwd="/"
        )
        self.streams.append(process)
        assert process.stdout is not None
        with process, process.stdout as output:
            while data := output.read1(4096):
                on_output(data)
                self._fleet.streamed += len(data)
        if process.returncode < 0:
            raise ConnectionLost(f"{self.node.name}: the connection ended")
        return process.returncode

    def exists(self, path: str) -> bool:
        self._reach()
        return Path(path).exists()

    def get_bytes(self, path: str, *, offset: int = 0) -> bytes:
        self._reach()
        return Path(path).read_bytes()[offset:]

    def _reach(self) -> None:
        if self.node.name in self._fleet.cut_off:
            raise ConnectError(f"{self.node.name}: no answer")

    def _env(self) -> dict[str, str]:
        return {"PATH": "/usr/bin:/bin", "HOME": self.node.work_dir, "LC_ALL": "C"}


class LocalFleet:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.cut_off: set[str] = set()
        self.streamed = 0
        self._shells = {node.name: LocalShell(node, self) for node in cluster.nodes}
        self._lock = threading.Lock()

    def shell(self, name: str) -> LocalShell:
        return self._shells[name]

    def on_each(self, function: Callable[[LocalShell], Any], *, nodes: Sequence[Node] | None = None) -> Outcomes:
        names = [node.name for node in (self.cluster.nodes if nodes is None else nodes)]
        results: dict[str, Any] = {}
        errors: dict[str, BootstrapError] = {}

        def one(name: str) -> None:
            try:
                results[name] = function(self._shells[name])
            except BootstrapError as error:
                errors[name] = error
            except InfraError as error:
                errors[name] = WorkError(error)

        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(one, names))
        return Outcomes({n: results[n] for n in names if n in results}, {n: errors[n] for n in names if n in errors})

    def cut(self, name: str) -> None:
        """The network to one node ends, streams included."""
        self.cut_off.add(name)
        for process in self._shells[name].streams:
            process.kill()

    def mend(self, name: str) -> None:
        self.cut_off.discard(name)

    def close(self) -> None:
        for shell in self._shells.values():
            for process in shell.streams:
                process.kill()
