"""What the clouds' programs share around the gang: whom SSH is open to, the gang's inputs, and the Cluster of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pulumi

from infra import own_address
from infra.cluster import VERSION, Cluster, Endpoint, Node, Price, SharedStorage
from infra.dynamic import public_key
from infra.errors import ProviderError
from infra.first_boot import Login
from infra.gang_record import request_of
from infra.gang_resource import Gang
from infra.gpus import MachineType
from infra.providers.base import Deployment
from infra.spec import ClusterSpec
from infra.user_data import LOGIN


def ssh_from(spec: ClusterSpec) -> Sequence[str]:
    """Whom SSH is open to, IPv4. The default is found; the world only where somebody wrote it. Raises ProviderError."""
    if spec.ssh_from:
        return spec.ssh_from
    found = own_address.find()
    if ":" in found:
        raise ProviderError(
            f"this machine is seen with {found}, and the cluster's network has IPv4 only: write the IPv4 network that "
            "you will come from under ssh_from"
        )
    return (found,)


def tell_ssh_from(networks: Sequence[str], shown_at: pulumi.Resource) -> None:
    pulumi.log.info(f"SSH to the head is open to {', '.join(networks)} and nobody else (key ssh_from)", shown_at)
    if any(each.endswith("/0") for each in networks):
        pulumi.log.warn("SSH to the head is open to the whole world, as ssh_from says", shown_at)


def note_storage(deployment: Deployment) -> None:
    """Have it on disk that shared storage is asked for, before it is."""
    if not pulumi.runtime.is_dry_run():
        deployment.storage_marker.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        deployment.storage_marker.touch()


def gang(
    spec: ClusterSpec,
    deployment: Deployment,
    price: Price,
    *,
    zones: Sequence[str],
    what: str,
    wish: Mapping[str, Any],
    places: Mapping[str, Any],
    opts: pulumi.ResourceOptions,
) -> Gang:
    """The resource. `wish` and `places` are the provider's own, `zones` in the order in which they are tried."""
    if (made_with := request_of(deployment.gang_folder).get("lifetime_s", spec.max_lifetime_s)) != spec.max_lifetime_s:
        pulumi.log.warn(
            f"machines that run keep the lifetime they were made with, {made_with / 3600:g} h: the new max_lifetime, "
            f"{spec.max_lifetime_s / 3600:g} h, is that of the next gang (`make destroy`, then `pulumi up`)"
        )
    inputs = {
        "provider": spec.provider,
        "project": deployment.project,
        "stack": deployment.stack,
        "nodes": spec.nodes,
        "zones": list(zones),
        "zones_are_asked_for": spec.zones is not None,
        "what": what,
        "lifetime_s": spec.max_lifetime_s,
        "public_key": public_key(deployment),
        "price": {
            "usd_per_hour": price.usd_per_hour,
            "source": price.source,
            "as_of": price.as_of.isoformat(),
            "usd_per_hour_after_guard": price.usd_per_hour_after_guard,
        },
        "wish": wish,
        "places": places,
    }
    return Gang("gang", inputs, opts=opts)


def cluster(
    spec: ClusterSpec,
    deployment: Deployment,
    made: Gang,
    *,
    region: str | None,
    machine: MachineType,
    head_address: pulumi.Output[str] | None = None,
    storage: pulumi.Output[dict[str, str]] | None = None,
    login: Login = LOGIN,
    interface: str | None = None,
    all_public: bool = False,
    shared_path: str | None = None,
) -> pulumi.Output[dict[str, object]]:
    """`Cluster.to_json()`, once every node is there.

    `region`: None where zones are regions. `head_address`: None where the machine tells its own public one.
    `all_public`: every node is reached from outside, not the head alone. `shared_path`: where the provider itself has
    mounted what all nodes share.
    """
    shape = _Shape(
        region=region, machine=machine, login=login, interface=interface, all_public=all_public, shared_path=shared_path
    )
    known = pulumi.Output.all(
        zone=made.zone,
        created_at=made.created_at,
        expires_at=made.expires_at,
        machines=made.machines,
        price=made.price,
        head=head_address,
        storage=storage,
    )
    return known.apply(lambda it: _cluster(spec, deployment, shape, it).to_json())


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """What is known of the nodes before they are there."""

    region: str | None
    machine: MachineType
    login: Login
    interface: str | None
    all_public: bool
    shared_path: str | None


def _cluster(spec: ClusterSpec, deployment: Deployment, shape: _Shape, known: Mapping[str, Any]) -> Cluster:
    price = known["price"]
    return Cluster(
        version=VERSION,
        project=deployment.project,
        stack=deployment.stack,
        provider=spec.provider,
        region=shape.region or known["zone"],
        zone=known["zone"],
        created_at=datetime.fromisoformat(known["created_at"]),
        expires_at=datetime.fromisoformat(known["expires_at"]),
        price=Price(**{**price, "as_of": datetime.fromisoformat(price["as_of"])}),
        shared_storage=shape.shared_path,
        storage=SharedStorage(**known["storage"]) if known["storage"] else None,
        nodes=tuple(
            _node(spec, shape, each, rank=rank, head_address=known["head"])
            for rank, each in enumerate(known["machines"])
        ),
    )


def _node(spec: ClusterSpec, shape: _Shape, made: Mapping[str, Any], *, rank: int, head_address: str | None) -> Node:
    machine = shape.machine
    # State of an older checkout has no port.
    own = Endpoint(host=head_address or made["public_address"], port=int(made.get("public_port", 22)))
    return Node(
        name=made["name"],
        provider_id=made["id"],
        rank=rank,
        public=own if rank == 0 or shape.all_public else None,
        private=Endpoint(host=made["private_address"]),
        user=shape.login.user,
        host_key=made["host_key"],
        work_dir=shape.login.work_dir,
        processes=spec.processes_per_node or machine.gpu_count,
        cpu_threads=machine.vcpus,
        gpu_model=machine.gpu_model,
        gpu_count=machine.gpu_count,
        gpu_memory_gib=machine.gpu_memory_gib,
        interface=shape.interface,
    )
