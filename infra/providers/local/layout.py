"""Names and places of a local stack: functions of its deployment, so that what a killed `up` left can be found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from infra.providers.base import Deployment

MARKER = "TRAINSTACK_NODE"
"""Environment variable of every process on a node, "<identity>/<digest>/<node>": how the system is asked for them."""


@dataclass(frozen=True)
class Layout:
    """Where a stack's things are, and what they are called."""

    deployment: Deployment

    @property
    def folder(self) -> Path:
        """Everything on disk of the stack's nodes."""
        return self.deployment.root.resolve() / ".trainstack" / "local" / self.deployment.stack

    @property
    def shared(self) -> Path:
        """The folder that is the same on every node, when the stack asks for one."""
        return self.folder / "shared"

    @property
    def namespace_prefix(self) -> str:
        return f"ts-{self.deployment.digest}-"

    @property
    def hub(self) -> str:
        """The namespace that holds the bridge. It is apart from the host's so that the host's own firewall rules for
        forwarded packets (Docker drops them) don't come between the nodes."""
        return f"{self.namespace_prefix}hub"

    @property
    def link(self) -> str:
        """The host's interface into the hub. 10 bytes of the 15 that Linux allows."""
        return f"ts{self.deployment.digest}"

    @property
    def marker_prefix(self) -> str:
        return f"{self.deployment.identity}/{self.deployment.digest}/"

    def node(self, name: str) -> NodeLayout:
        return NodeLayout(stack=self, name=name)


@dataclass(frozen=True, kw_only=True)
class NodeLayout:
    """One node's part of it."""

    stack: Layout
    name: str

    @property
    def folder(self) -> Path:
        return self.stack.folder / self.name

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def bin(self) -> Path:
        """First on the PATH of the node's sessions: python3 and uv."""
        return self.folder / "bin"

    @property
    def tmp(self) -> Path:
        return self.folder / "tmp"

    @property
    def etc(self) -> Path:
        """sshd's files, and what is bound over the host's /etc."""
        return self.folder / "etc"

    @property
    def log(self) -> Path:
        return self.folder / "sshd.log"

    @property
    def deadline(self) -> Path:
        """Unix time at which the guard ends the node; it reads the file again and again."""
        return self.etc / "expires_at"

    @property
    def namespace(self) -> str:
        return f"{self.stack.namespace_prefix}{self.name}"

    @property
    def marker(self) -> str:
        return f"{self.stack.marker_prefix}{self.name}"
