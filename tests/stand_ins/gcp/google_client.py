"""What the tests of the stand-in make and ask by Google's own client."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError

from tests.stand_ins.gcp.client import PROJECT, StandIn

ZONE, REGION = "us-central1-b", "us-central1"
IMAGE = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64"
Body = dict[str, Any]
INSERT = "compute.instances.insert"


class Compute:
    """Google's client, and what the tests make with it."""

    def __init__(self, gcp: StandIn) -> None:
        endpoint = {"api_endpoint": gcp.env["GOOGLE_COMPUTE_CUSTOM_ENDPOINT"]}
        self.api: Any = build("compute", "v1", static_discovery=True, client_options=endpoint)

    def make(self, collection: str, body: Body, **place: str) -> Body:
        """Insert, and wait; raises HttpError. The operation as it ended."""
        operation = getattr(self.api, collection)().insert(project=PROJECT, body=body, **place).execute()
        assert operation["status"] == "RUNNING"
        return self.wait(operation)

    def wait(self, operation: Body) -> Body:
        kind = next((each for each in ("zone", "region") if each in operation), "global")
        place = {} if kind == "global" else {kind: operation[kind].rpartition("/")[2]}
        waits = getattr(self.api, f"{kind}Operations")()
        done: Body = waits.wait(project=PROJECT, operation=operation["name"], **place).execute()
        return done

    def network(self, name: str = "net", *, cidr: str = "10.0.0.0/20", **more: Any) -> str:
        """A network and a subnet of its own; the subnet's URL."""
        self.make("networks", {"name": name, "autoCreateSubnetworks": False, **more})
        self.subnet(name, name, cidr)
        return f"regions/{REGION}/subnetworks/{name}"

    def subnet(self, name: str, network: str, cidr: str) -> str:
        body = {"name": name, "network": f"global/networks/{network}", "ipCidrRange": cidr}
        self.make("subnetworks", body, region=REGION)
        return f"regions/{REGION}/subnetworks/{name}"

    def machine(self, body: Body, *, zone: str = ZONE) -> Body:
        return self.make("instances", body, zone=zone)

    def delete(self, collection: str, **what: str) -> Body:
        return self.wait(getattr(self.api, collection)().delete(project=PROJECT, **what).execute())


@pytest.fixture
def compute(gcp: StandIn) -> Compute:
    return Compute(gcp)


def machine(machine_type: str = "e2-small", *, name: str = "node-0", zone: str = ZONE, **more: Any) -> Body:
    """A right body for any machine type."""
    gpu = not machine_type.startswith("e2")
    hyper = machine_type.startswith(("a3-ultra", "a4"))
    start = {
        "sourceImage": IMAGE,
        "diskType": f"zones/{zone}/diskTypes/{'hyperdisk-balanced' if hyper else 'pd-balanced'}",
    }
    body: Body = {
        "name": name,
        "machineType": f"zones/{zone}/machineTypes/{machine_type}",
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": start}],
        "networkInterfaces": [{"subnetwork": f"regions/{REGION}/subnetworks/net"}],
        "labels": {"stack": "trial"},
    }
    if gpu:
        body["scheduling"] = {"onHostMaintenance": "TERMINATE"}
    return {**body, **more}


def spot(**more: Any) -> Body:
    return {
        "provisioningModel": "SPOT",
        "automaticRestart": False,
        "onHostMaintenance": "TERMINATE",
        "instanceTerminationAction": "DELETE",
        **more,
    }


def refused(work: Callable[[], Any]) -> tuple[int, str, str]:
    with pytest.raises(HttpError) as caught:
        work()
    error = json.loads(caught.value.content)["error"]
    return error["code"], error["errors"][0]["reason"], error["message"]


def codes(operation: Body) -> list[str]:
    return [error["code"] for error in operation.get("error", {}).get("errors", [])]
