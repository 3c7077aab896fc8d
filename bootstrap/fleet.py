"""Do it on all: the shells of a cluster's nodes, and one function on each in parallel, keeping the successes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

from bootstrap.connection import Link, quiet_paramiko
from bootstrap.errors import BootstrapError, SeveralNodes, WorkError
from bootstrap.hosts import key_path
from bootstrap.shell import Completed, Shell
from infra.cluster import Cluster, Node
from infra.errors import InfraError

__all__ = ["Completed", "Fleet", "Outcomes", "Shell"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Outcomes(Generic[T]):
    """Node name -> result or error, both in rank order; each node that was asked is in exactly one of them."""

    results: dict[str, T]
    errors: dict[str, BootstrapError]

    def require(self, what: str) -> dict[str, T]:
        """The results, or the one node's error as it is, or SeveralNodes that names each failed node."""
        if not self.errors:
            return self.results
        if len(self.errors) == 1:
            error = next(iter(self.errors.values()))
            raise error.cause if isinstance(error, WorkError) else error
        raise SeveralNodes(what, self.errors)


class Fleet:
    """The connections to a cluster: opened when first used, kept, shared. A context manager that closes them."""

    def __init__(self, cluster: Cluster, *, root: Path, connect_deadline_s: float = 60) -> None:
        quiet_paramiko()
        self.cluster = cluster
        self._key_file = key_path(root, cluster.stack)
        self._deadline_s = connect_deadline_s
        self._links: dict[str, Link] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends what is still on, then every connection; nodes behind the head first."""
        with self._lock:
            links = list(self._links.values())
            self._links.clear()
        for link in links:
            link.interrupt()
        for link in reversed(links):
            link.close()

    def shell(self, node_name: str) -> Shell:
        """The shell of one node. Raises ContractError when the cluster has no such node; connects later."""
        node = self.cluster.node(node_name)
        with self._lock:
            return Shell(self._link(node))

    def on_each(self, function: Callable[[Shell], T], *, nodes: Sequence[Node] | None = None) -> Outcomes[T]:
        """Runs `function` on each node (default: all) at once, a thread a node, and waits for all of them.

        An error of ours on one node goes into `errors`; anything else is a bug and is raised here after the others have
        ended. Ctrl-C ends the commands on the nodes, then the connections: nothing goes on behind the caller's back.
        """
        chosen = sorted(self.cluster.nodes if nodes is None else nodes, key=lambda node: node.rank)
        answers: queue.Queue[tuple[str, T | None, Exception | None]] = queue.Queue()

        def work(shell: Shell) -> None:
            try:
                answers.put((shell.node.name, function(shell), None))
            except Exception as error:  # noqa: BLE001  (handed to the caller's thread, which raises what isn't ours)
                answers.put((shell.node.name, None, error))

        for node in chosen:
            threading.Thread(target=work, args=(self.shell(node.name),), name=node.name, daemon=True).start()
        try:
            got = {name: (result, error) for name, result, error in (answers.get() for _ in chosen)}
        except KeyboardInterrupt:
            self.close()
            raise
        return _sort(chosen, got)

    def _link(self, node: Node) -> Link:
        if node.name not in self._links:
            gateway = self._link(self.cluster.head) if node.public is None else None
            self._links[node.name] = Link(node, key_file=self._key_file, gateway=gateway, deadline_s=self._deadline_s)
        return self._links[node.name]


def _sort(nodes: Sequence[Node], got: dict[str, tuple[T | None, Exception | None]]) -> Outcomes[T]:
    results: dict[str, T] = {}
    errors: dict[str, BootstrapError] = {}
    for node in nodes:
        result, error = got[node.name]
        if isinstance(error, BootstrapError):
            errors[node.name] = error
        elif isinstance(error, InfraError):
            errors[node.name] = WorkError(error)
        elif error is not None:
            raise error
        else:
            results[node.name] = result  # type: ignore[assignment]  # T may itself be None
    return Outcomes(results=results, errors=errors)
