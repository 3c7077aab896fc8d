"""What tests ask of the provider `gcp`: stack files, deployments, orders."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from infra.gang import Order
from infra.providers.base import Deployment
from infra.providers.gcp import api, names
from infra.spec import ClusterSpec, parse
from tests.infra import ordering
from tests.infra.ordering import PUBLIC_KEY
from tests.stand_ins.gcp.client import StandIn


def deployment(root: object, stack: str = "gcp") -> Deployment:
    return Deployment(root=Path(str(root)), stack=stack)


def asked(**keys: Any) -> ClusterSpec:
    """Two g2-standard-8 in us-central1 unless said otherwise; None takes a key away."""
    usual = {"provider": "gcp", "region": "us-central1", "instance": "g2-standard-8", "ssh_from": ["203.0.113.7"]}
    spec = {key: value for key, value in {**usual, **keys}.items() if value is not None}
    return parse(spec, file="stacks/Pulumi.gcp.yaml")


def order(name: str = "node-0", *, zone: str = "us-central1-a", **changes: Any) -> Order:
    return ordering.order(name, zone=zone, **changes)


def wish(**changes: Any) -> dict[str, Any]:
    """As resources.py writes it, with a main network only."""
    return {
        "project": "trainstack-test",
        "machine": "g2-standard-8",
        "provisioning": "STANDARD",
        "wait_s": 0,
        "reservation": "",
        "image": "ubuntu",
        "disk_gib": 200,
        "disk_type": "pd-balanced",
        "interfaces": [{"network": "projects/p/global/networks/n", "subnetwork": "s", "kind": "GVNIC"}],
        "placement": "projects/p/regions/us-central1/resourcePolicies/near",
        "service_account": "",
        "public_key": PUBLIC_KEY,
        **changes,
    }


PINNED = {
    "image": "projects/ubuntu-os-cloud/global/images/ubuntu-2404-noble-amd64-v20261110",
    "image_gib": 10,
    "placement": "",
}


def clouds_wish(gcp: StandIn, mine: Deployment, **changes: Any) -> dict[str, Any]:
    """A wish that the stand-in can fulfil: it has the network, subnet and policy that Pulumi would have made."""
    client = api.connect(mine)
    path = f"projects/{client.project}"
    marks = {"name": names.name(mine, "net-0"), "description": names.description(mine)}
    network, subnet = f"global/networks/{marks['name']}", f"regions/us-central1/subnetworks/{marks['name']}"
    made = {
        "global/networks": {**marks, "autoCreateSubnetworks": False, "mtu": 8896},
        "regions/us-central1/subnetworks": {**marks, "network": f"{path}/{network}", "ipCidrRange": "10.64.0.0/20"},
    }
    for where, body in made.items():
        doing = f"making {where}"
        operation = client.insert(f"{path}/{where}", body, doing=doing, request_id=str(uuid.uuid4()))
        client.wait(operation, doing=doing)
    assert network.rpartition("/")[2] in " ".join(gcp.leftovers())
    interface = {"network": f"{path}/{network}", "subnetwork": f"{path}/{subnet}", "kind": "GVNIC"}
    return wish(interfaces=[interface], placement="", **changes)
