"""Contract 1: what came back from `pulumi up`. Frozen, versioned, JSON both ways; all that crosses from infra/.

Everything behind this file (bootstrap/, launcher/) works on any provider, because it reads nothing else.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from datetime import datetime
from typing import Any, Literal, Self, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from infra.errors import ContractError

VERSION = 1

_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Endpoint:
    """Where an SSH server listens, as seen from whoever connects."""

    host: str
    port: int = 22


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Node:
    """One machine of the gang."""

    name: str
    """Short and unique in the cluster: "node-0"."""
    provider_id: str
    """The provider's own key of the machine: what `leftovers` and a console search for."""
    rank: int
    """Node rank, 0 .. len(nodes) - 1. Rank 0 is the head: it hosts the rendezvous."""
    public: Endpoint | None
    """Where the user's machine reaches it directly; None means through the head."""
    private: Endpoint
    """Where the other nodes reach it, for SSH and for collectives. Always an address, never a name."""
    user: str
    """Login name."""
    host_key: str
    """SSH host public key, "ssh-ed25519 AAAA…", made by us at creation, never learnt from the network."""
    work_dir: str
    """Absolute path on the node under which everything of ours lives (code, environments, runs)."""
    processes: int
    """Training processes on this node (local world size): its GPU count, or what the stack says on CPU."""
    cpu_threads: int
    """CPU threads that this node may use; on one shared machine, its share."""
    gpu_model: str | None = None
    gpu_count: int = 0
    gpu_memory_gib: float | None = None
    interface: str | None = None
    """Interface for collective traffic (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME); None lets the backend choose."""

    @property
    def is_head(self) -> bool:
        return self.rank == 0


def node_names(nodes: int) -> list[str]:
    """In rank order: "node-0", "node-1" …"""
    return [f"node-{rank}" for rank in range(nodes)]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Price:
    """What the cluster costs. Unknown is None, never zero; a machine of your own is 0.0 from "your own machine"."""

    usd_per_hour: float | None
    source: str
    as_of: datetime
    usd_per_hour_after_guard: float | None = 0.0
    """What of it goes on when the guard has ended the nodes, until `make destroy`: addresses, NAT, storage."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class SharedStorage:
    """Storage of the provider's that the nodes can reach, whether it is mounted yet or not."""

    kind: Literal["lustre", "nfs", "bucket"]
    address: str
    """What is mounted or named: "fs-0123.fsx.us-east-1.amazonaws.com@tcp:/abc", "10.0.0.2:/share", "s3://name"."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Cluster:
    """A created cluster. `nodes` are in rank order and complete: a gang with one machine missing is not a Cluster."""

    version: int
    project: str
    stack: str
    provider: str
    region: str | None
    zone: str | None
    created_at: datetime
    expires_at: datetime
    """When the guard ends the billing by itself (`max_lifetime`)."""
    price: Price
    shared_storage: str | None
    """Absolute path that is the same storage on every node, or None."""
    nodes: tuple[Node, ...]
    storage: SharedStorage | None = None

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ContractError(
                f"stack {self.stack}: its cluster output has version {self.version}, this checkout reads version "
                f"{VERSION}: check out the version that created it, or run `make destroy` and `pulumi up` again"
            )
        ranks = [node.rank for node in self.nodes]
        if not ranks or ranks != list(range(len(ranks))):
            raise ContractError(f"stack {self.stack}: node ranks are {ranks}, not 0 .. n-1: run `pulumi up` again")
        distinct: dict[str, list[object]] = {
            "name": [node.name for node in self.nodes],
            "provider id": [node.provider_id for node in self.nodes],
            "private address": [(node.private.host, node.private.port) for node in self.nodes],
            "host key": [node.host_key for node in self.nodes],
        }
        for what, values in distinct.items():
            if len(set(values)) != len(values):
                raise ContractError(f"stack {self.stack}: two nodes have one {what} ({values}): run `pulumi refresh`")
        for node in self.nodes:
            try:
                ipaddress.ip_address(node.private.host)
            except ValueError:
                raise ContractError(
                    f"stack {self.stack}, {node.name}: private address {node.private.host!r} is not an IP address"
                ) from None
        if self.nodes[0].public is None:
            raise ContractError(f"stack {self.stack}: the head {self.nodes[0].name} has no public address")

    @property
    def head(self) -> Node:
        return self.nodes[0]

    @property
    def world_size(self) -> int:
        return sum(node.processes for node in self.nodes)

    def node(self, name: str) -> Node:
        """The node called `name`; raises ContractError with the names there are."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise ContractError(f"stack {self.stack} has no node {name!r}: it has {', '.join(n.name for n in self.nodes)}")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, for a stack output or a run record."""
        return dict(_ADAPTER.dump_python(self, mode="json"))

    @classmethod
    def from_json(cls, value: object) -> Self:
        """The inverse of `to_json`; raises ContractError with the first key that is wrong."""
        try:
            return cast(Self, _ADAPTER.validate_python(value))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "(whole)"
            raise ContractError(
                f"stack output `cluster`, key {where}: {first['msg']}: run `pulumi up` again with this checkout"
            ) from None

    def replace(self, **changes: Any) -> Self:
        return dataclasses.replace(self, **changes)


_ADAPTER: TypeAdapter[Cluster] = TypeAdapter(Cluster)
