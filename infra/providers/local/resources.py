"""The Pulumi shell around the local provider: a component with one network and its nodes. Decides little, does nothing.

Pulumi's state holds NetworkVerbs and NodeVerbs by module and name, so destroy runs today's code: keep this path.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, ResourceProvider, UpdateResult

from infra.cluster import VERSION, Cluster, Endpoint, Price, node_names
from infra.cluster import Node as ClusterNode
from infra.dynamic import changed, one_sentence, public_key
from infra.providers.base import Deployment
from infra.providers.local import isolation, network, nodes
from infra.providers.local.layout import Layout
from infra.spec import ClusterSpec
from infra.stack import project_root


def _layout(props: Mapping[str, Any]) -> Layout:
    """The root isn't in the state: it is the checkout that runs, so that a moved one still finds its own."""
    return Layout(Deployment(root=project_root(), stack=props["stack"], project=props["project"]))


class NetworkVerbs(ResourceProvider):
    """What the nodes share, and when they were made and end."""

    serialize_as_secret_always = False

    @one_sentence
    def create(self, props: dict[str, Any]) -> CreateResult:
        layout = _layout(props)
        nodes.end_processes(layout)  # of an earlier try that was killed
        subnet = network.create_hub(layout) if props["mode"] == "namespace" else ""
        network.prepare_folders(layout, nodes=int(props["nodes"]), shared=props["shared"])
        return CreateResult(layout.link, {**props, "subnet": subnet, **_term(datetime.now(UTC), props)})

    @one_sentence
    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        layout = _layout(_olds)
        replaces = changed(_olds, _news, "project", "stack", "mode", "shared")
        if not _network_is_there(layout, _olds) and not replaces:
            replaces = ["subnet"]
        expired = datetime.now(UTC) >= datetime.fromisoformat(_olds["expires_at"])
        changes = bool(replaces or expired or changed(_olds, _news, "nodes", "lifetime_s"))
        return DiffResult(changes=changes, replaces=replaces, delete_before_replace=True)

    @one_sentence
    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        return ReadResult(id_, props) if _network_is_there(_layout(props), props) else ReadResult("", {})

    @one_sentence
    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> UpdateResult:
        network.prepare_folders(_layout(_news), nodes=int(_news["nodes"]), shared=_news["shared"])
        now = datetime.now(UTC)
        expired = now >= datetime.fromisoformat(_olds["expires_at"])
        created_at = now if expired else datetime.fromisoformat(_olds["created_at"])
        return UpdateResult({**_news, "subnet": _olds["subnet"], **_term(created_at, _news)})

    @one_sentence
    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        layout = _layout(_props)
        nodes.end_processes(layout)
        network.remove_all(layout)


class NodeVerbs(ResourceProvider):
    """One node."""

    serialize_as_secret_always = False

    @one_sentence
    def create(self, props: dict[str, Any]) -> CreateResult:
        request = nodes.NodeRequest(
            name=props["name"],
            rank=int(props["rank"]),
            nodes=int(props["nodes"]),
            mode=props["mode"],
            subnet=props["subnet"],
            public_key=props["public_key"],
            expires_at=datetime.fromisoformat(props["expires_at"]),
        )
        created = nodes.create(_layout(props), request)
        return CreateResult(created.provider_id, {**props, **dataclasses.asdict(created)})

    @one_sentence
    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        replaces = changed(_olds, _news, "project", "stack", "name", "rank", "mode", "subnet", "public_key")
        if not replaces and not nodes.is_alive(_layout(_olds), _olds["name"]):
            replaces = ["provider_id"]
        changes = bool(replaces) or _olds.get("expires_at") != _news.get("expires_at")
        return DiffResult(changes=changes, replaces=replaces, delete_before_replace=True)

    @one_sentence
    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        return ReadResult(id_, props) if nodes.is_alive(_layout(props), props["name"]) else ReadResult("", {})

    @one_sentence
    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> UpdateResult:
        nodes.set_expiry(_layout(_news).node(_news["name"]), datetime.fromisoformat(_news["expires_at"]))
        kept = {field.name: _olds[field.name] for field in dataclasses.fields(nodes.CreatedNode)}
        return UpdateResult({**_news, **kept})

    @one_sentence
    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        nodes.destroy(_layout(_props), _props["name"])


def _network_is_there(layout: Layout, props: Mapping[str, Any]) -> bool:
    return layout.folder.is_dir() and (props["mode"] != "namespace" or network.hub_is_there(layout))


def _term(created_at: datetime, props: Mapping[str, Any]) -> dict[str, str]:
    expires_at = created_at + timedelta(seconds=int(props["lifetime_s"]))
    return {"created_at": created_at.isoformat(), "expires_at": expires_at.isoformat()}


class Network(Resource, module="trainstack", name="LocalNetwork"):
    """Folders and bridge of a local cluster."""

    subnet: pulumi.Output[str]
    created_at: pulumi.Output[str]
    expires_at: pulumi.Output[str]

    def __init__(self, name: str, inputs: Mapping[str, Any], *, opts: pulumi.ResourceOptions) -> None:
        outputs = dict.fromkeys(("subnet", "created_at", "expires_at"))
        super().__init__(NetworkVerbs(), name, {**inputs, **outputs}, opts)


class Node(Resource, module="trainstack", name="LocalNode"):
    """One node of a local cluster; its outputs are those of nodes.CreatedNode."""

    address: pulumi.Output[str]
    port: pulumi.Output[float]
    user: pulumi.Output[str]
    host_key: pulumi.Output[str]
    work_dir: pulumi.Output[str]
    interface: pulumi.Output[str]
    provider_id: pulumi.Output[str]

    def __init__(self, name: str, inputs: Mapping[str, Any], *, opts: pulumi.ResourceOptions) -> None:
        outputs = dict.fromkeys(field.name for field in dataclasses.fields(nodes.CreatedNode))
        super().__init__(NodeVerbs(), name, {**inputs, **outputs}, opts)

    def facts(self) -> pulumi.Output[dict[str, Any]]:
        """nodes.CreatedNode as a dictionary."""
        names = [field.name for field in dataclasses.fields(nodes.CreatedNode)]
        return pulumi.Output.all(**{name: getattr(self, name) for name in names})


class LocalCluster(pulumi.ComponentResource):
    """The whole gang. `cluster` resolves only when every node is there."""

    cluster: pulumi.Output[dict[str, object]]

    def __init__(self, name: str, spec: ClusterSpec, deployment: Deployment, price: Price) -> None:
        super().__init__("trainstack:local:Cluster", name)
        mode, reason = isolation.choose()
        if reason:
            pulumi.log.info(f"nodes on 127.0.0.1 without isolation from one another: {reason}", self)
        whose = {"project": deployment.project, "stack": deployment.stack, "mode": mode, "nodes": spec.nodes}
        shared = {
            **whose,
            "shared": spec.shared_storage,
            "lifetime_s": spec.max_lifetime_s,
        }
        net = Network("network", shared, opts=pulumi.ResourceOptions(parent=self))
        common = {
            **whose,
            "public_key": public_key(deployment),
            "subnet": net.subnet,
            "expires_at": net.expires_at,
        }
        children = [
            Node(
                node_name,
                {**common, "name": node_name, "rank": rank},
                opts=pulumi.ResourceOptions(parent=self, depends_on=[net]),
            )
            for rank, node_name in enumerate(node_names(spec.nodes))
        ]
        facts = pulumi.Output.all(
            net=pulumi.Output.all(created_at=net.created_at, expires_at=net.expires_at),
            nodes=pulumi.Output.all(*(child.facts() for child in children)),
        )
        self.cluster = facts.apply(lambda known: _cluster(spec, deployment, price, known).to_json())
        self.register_outputs({"cluster": self.cluster})


def declare(spec: ClusterSpec, deployment: Deployment, price: Price) -> pulumi.Output[dict[str, object]]:
    return LocalCluster(deployment.stack, spec, deployment, price).cluster


def _cluster(spec: ClusterSpec, deployment: Deployment, price: Price, known: Mapping[str, Any]) -> Cluster:
    created_at = datetime.fromisoformat(known["net"]["created_at"])
    return Cluster(
        version=VERSION,
        project=deployment.project,
        stack=deployment.stack,
        provider="local",
        region=None,
        zone=None,
        created_at=created_at,
        expires_at=datetime.fromisoformat(known["net"]["expires_at"]),
        price=dataclasses.replace(price, as_of=created_at),  # the same at each `pulumi up`,
        shared_storage=str(Layout(deployment).shared) if spec.shared_storage else None,
        nodes=tuple(_cluster_node(spec, facts, rank=rank) for rank, facts in enumerate(known["nodes"])),
    )


def _cluster_node(spec: ClusterSpec, facts: Mapping[str, Any], *, rank: int) -> ClusterNode:
    endpoint = Endpoint(host=facts["address"], port=int(facts["port"]))
    return ClusterNode(
        name=node_names(spec.nodes)[rank],
        provider_id=facts["provider_id"],
        rank=rank,
        public=endpoint,
        private=endpoint,
        user=facts["user"],
        host_key=facts["host_key"],
        work_dir=facts["work_dir"],
        processes=spec.processes_per_node or 1,
        cpu_threads=max(1, (os.cpu_count() or 1) // spec.nodes),
        interface=facts["interface"],
    )
