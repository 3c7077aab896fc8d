"""The stand-in for GCP by Google's own client: its refusals, its operations, and each fault that a test may order."""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections.abc import Callable
from typing import Any

import google.auth
import pytest
import requests
from google.auth.exceptions import RefreshError
from google.auth.transport.requests import AuthorizedSession
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError

from tests.stand_ins.gcp.client import PROJECT, StandIn
from tests.stand_ins.gcp.fixtures import gcp, gcp_key

__all__ = ["gcp", "gcp_key"]

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


# -- what is right ----------------------------------------------------------------------------------------------------


def test_a_machine_lives_and_goes_with_its_disk(gcp: StandIn, compute: Compute) -> None:
    compute.network()
    nics = [{"subnetwork": f"regions/{REGION}/subnetworks/net", "accessConfigs": [{}]}]
    metadata = {"items": [{"key": "enable-guest-attributes", "value": "TRUE"}]}
    assert codes(compute.machine(machine(networkInterfaces=nics, metadata=metadata))) == []
    instances = compute.api.instances()
    where = {"project": PROJECT, "zone": ZONE, "instance": "node-0"}
    there = instances.get(**where).execute()
    assert there["status"] == "RUNNING"
    assert there["networkInterfaces"][0]["networkIP"] == "10.0.0.2"
    assert there["networkInterfaces"][0]["accessConfigs"][0]["natIP"].startswith("203.0.113.")

    assert refused(instances.getGuestAttributes(**where, queryPath="hostkeys/").execute)[0] == 404
    gcp.publish_guest_attributes(ZONE, "node-0", {"ssh-ed25519": "AAAA"})
    keys = instances.getGuestAttributes(**where, queryPath="hostkeys/").execute()["queryValue"]["items"]
    assert keys == [{"namespace": "hostkeys", "key": "ssh-ed25519", "value": "AAAA"}]

    labels = {"labels": {"stack": "other"}, "labelFingerprint": there["labelFingerprint"]}
    compute.wait(instances.setLabels(**where, body=labels).execute())
    assert refused(instances.setLabels(**where, body=labels).execute)[:2] == (412, "conditionNotMet")

    gcp.stop_slowly(reads=3)
    operation = instances.delete(**where).execute()
    seen = [instances.get(**where).execute()["status"] for _ in range(3)]
    assert seen == ["STOPPING"] * 3
    assert compute.wait(operation)["status"] == "DONE"
    assert refused(instances.get(**where).execute)[:2] == (404, "notFound")
    assert not [path for path in gcp.leftovers() if "/disks/" in path]


def test_lists_filter_and_page_over_all_zones(compute: Compute) -> None:
    compute.network()
    for name, stack in (("a-0", "one"), ("a-1", "one"), ("b-0", "two")):
        compute.machine(machine(name=name, labels={"stack": stack}))
    instances = compute.api.instances()

    def names(expression: str) -> list[str]:
        items = instances.aggregatedList(project=PROJECT, filter=expression).execute()["items"]
        assert "warning" in items["zones/europe-west4-a"]
        return [each["name"] for each in items.get(f"zones/{ZONE}", {}).get("instances", [])]

    assert names("labels.stack=one") == ["a-0", "a-1"]
    assert names("name:b*") == ["b-0"]
    assert names('name eq "a-.*"') == ["a-0", "a-1"]
    assert names("(labels.stack=one) (name=a-1)") == ["a-1"]
    assert names("labels.stack=two OR name=a-0") == ["a-0", "b-0"]
    assert names("status!=RUNNING") == []
    assert refused(lambda: names("what is this"))[0] == 400
    first = instances.list(project=PROJECT, zone=ZONE, maxResults=2)
    second = instances.list_next(first, first.execute())
    assert [each["name"] for each in second.execute()["items"]] == ["b-0"]


def test_a_request_id_makes_one_machine(compute: Compute) -> None:
    compute.network()
    insert = compute.api.instances().insert
    once = {"project": PROJECT, "zone": ZONE, "requestId": str(uuid.uuid4()), "body": machine()}
    assert insert(**once).execute()["name"] == insert(**once).execute()["name"]
    assert refused(insert(**{**once, "requestId": str(uuid.uuid4())}).execute)[:2] == (409, "alreadyExists")
    assert refused(insert(**{**once, "requestId": "me"}).execute)[1] == "invalid"


# -- what Google refuses at once --------------------------------------------------------------------------------------

WRONG: list[tuple[str, Body]] = [
    ("Cannot find field", {"colour": "red"}),
    ("TYPE_BOOLEAN", {"deletionProtection": "yes"}),
    ("Must be one of", {"scheduling": {"provisioningModel": "CHEAP"}}),
    ("resource.name", {"name": "Node_0"}),
    ("resource.name", {"name": "n" * 64}),
    ("Required field 'resource.machineType'", {"machineType": ""}),
    ("does not exist in zone", {"machineType": f"zones/{ZONE}/machineTypes/a9-highgpu-8g"}),
    ("another zone", {"machineType": "zones/us-central1-a/machineTypes/e2-small"}),
    ("label key", {"labels": {"Stack": "x"}}),
    ("at most 64", {"labels": {f"k{number}": "" for number in range(65)}}),
    ("marked as boot", {"disks": []}),
    ("image resource cannot be found", {"disks": [{"boot": True, "initializeParams": {"sourceImage": IMAGE + "x"}}]}),
    ("At least one network", {"networkInterfaces": []}),
    ("cannot be found", {"networkInterfaces": [{"subnetwork": f"regions/{REGION}/subnetworks/none"}]}),
    ("Networks must be distinct", {"networkInterfaces": [{"subnetwork": f"regions/{REGION}/subnetworks/net"}] * 2}),
    ("automaticRestart", {"scheduling": {"provisioningModel": "SPOT"}}),
    ("instanceTerminationAction", {"scheduling": {"maxRunDuration": {"seconds": "3600"}}}),
    (
        "30 seconds and 120 days",
        {"scheduling": {"maxRunDuration": {"seconds": "29"}, "instanceTerminationAction": "DELETE"}},
    ),
    ("Only for Spot", {"scheduling": {"instanceTerminationAction": "DELETE"}}),
    ("duplicate keys", {"metadata": {"items": [{"key": "a"}, {"key": "a"}]}}),
    ("too large", {"metadata": {"items": [{"key": "user-data", "value": "x" * 262145}]}}),
    ("specific reservation", {"scheduling": {"provisioningModel": "RESERVATION_BOUND"}}),
]


@pytest.mark.parametrize(("said", "wrong"), WRONG, ids=[str(index) for index in range(len(WRONG))])
def test_a_wrong_machine_is_refused(gcp: StandIn, compute: Compute, said: str, wrong: Body) -> None:
    compute.network()
    code, _, message = refused(lambda: compute.machine(machine(**wrong)))
    assert code == 400
    assert said in message
    assert not [path for path in gcp.leftovers() if "/instances/" in path]


def test_gpu_machines_have_rules_of_their_own(compute: Compute) -> None:
    compute.network()
    a3 = "a3-ultragpu-8g"
    accelerators = [{"acceleratorType": f"zones/{ZONE}/acceleratorTypes/nvidia-l4", "acceleratorCount": 1}]
    pd = [{"boot": True, "initializeParams": {"sourceImage": IMAGE, "diskType": f"zones/{ZONE}/diskTypes/pd-ssd"}}]
    for said, body in (
        ("live migration", machine("g2-standard-4", scheduling={})),
        ("built in", machine("g2-standard-4", guestAccelerators=accelerators)),
        ("not compatible", machine(a3, scheduling=spot(), disks=pd)),
        ("provisioning model STANDARD", machine(a3)),
        (
            "up to 7 days",
            machine(a3, scheduling=spot(provisioningModel="FLEX_START", maxRunDuration={"seconds": "700000"})),
        ),
    ):
        assert said in refused(lambda body=body: compute.machine(body))[2]  # type: ignore[misc]
    assert codes(compute.machine(machine("g2-standard-4"))) == []


def test_rdma_networks_take_rdma_interfaces_only(compute: Compute) -> None:
    profile = f"global/networkProfiles/{ZONE}-vpc-roce"
    compute.network("net")
    compute.make("networks", {"name": "roce", "autoCreateSubnetworks": False, "networkProfile": profile, "mtu": 8896})
    nics = [{"subnetwork": f"regions/{REGION}/subnetworks/net", "nicType": "GVNIC"}]
    for number in range(8):
        url = compute.subnet(f"roce-{number}", "roce", f"10.9.{number}.0/24")
        nics.append({"subnetwork": url, "nicType": "MRDMA"})
    wall = {"name": "wall", "network": "global/networks/roce", "allowed": [{"IPProtocol": "tcp"}]}
    assert "firewall" in refused(lambda: compute.make("firewalls", wall))[2]
    elsewhere = {"name": "e", "network": "global/networks/roce", "ipCidrRange": "10.8.0.0/24"}
    told = refused(lambda: compute.make("subnetworks", elsewhere, region="us-east4"))[2]
    assert "Network profile only allows resource creation in location" in told

    def ultra(nics: list[Body], kind: str = "a3-ultragpu-8g") -> Body:
        return machine(kind, scheduling=spot(), networkInterfaces=nics)

    public = [nics[0], {**nics[1], "accessConfigs": [{}]}]
    assert "external" in refused(lambda: compute.machine(ultra(public)))[2]
    assert "MRDMA" in refused(lambda: compute.machine(ultra([nics[0], {**nics[1], "nicType": "GVNIC"}])))[2]
    assert "MRDMA" in refused(lambda: compute.machine(ultra([{**nics[0], "nicType": "MRDMA"}])))[2]
    assert "no RDMA" in refused(lambda: compute.machine(ultra(nics[:2], "a3-highgpu-1g")))[2]
    assert codes(compute.machine(ultra(nics))) == []


def test_a_placement_policy_holds_its_number_in_one_region(compute: Compute) -> None:
    compute.network()
    policy = {"name": "compact", "groupPlacementPolicy": {"collocation": "COLLOCATED", "vmCount": 1}}
    compute.make("resourcePolicies", policy, region=REGION)
    placed = {"resourcePolicies": [f"regions/{REGION}/resourcePolicies/compact"]}
    assert "does not support" in refused(lambda: compute.machine(machine(**placed)))[2]
    assert codes(compute.machine(machine("g2-standard-4", **placed))) == []
    assert "for 1 instances" in refused(lambda: compute.machine(machine("g2-standard-4", name="node-1", **placed)))[2]
    told = refused(lambda: compute.delete("resourcePolicies", region=REGION, resourcePolicy="compact"))
    assert told[:2] == (400, "resourceInUseByAnotherResource")


def test_what_is_used_cannot_be_deleted(gcp: StandIn, compute: Compute) -> None:
    compute.network()
    compute.make("addresses", {"name": "out"}, region=REGION)
    ip = compute.api.addresses().get(project=PROJECT, region=REGION, address="out").execute()["address"]
    nics = [{"subnetwork": f"regions/{REGION}/subnetworks/net", "accessConfigs": [{"natIP": ip}]}]
    compute.machine(machine(networkInterfaces=nics))
    assert "is in use" in refused(lambda: compute.machine(machine(name="other", networkInterfaces=nics)))[2]
    for collection, what in (
        ("networks", {"network": "net"}),
        ("subnetworks", {"region": REGION, "subnetwork": "net"}),
        ("addresses", {"region": REGION, "address": "out"}),
        ("disks", {"zone": ZONE, "disk": "node-0"}),
    ):
        told = refused(lambda c=collection, w=what: compute.delete(c, **w))  # type: ignore[misc]
        assert told[:2] == (400, "resourceInUseByAnotherResource")
    compute.delete("instances", zone=ZONE, instance="node-0")
    compute.delete("addresses", region=REGION, address="out")
    compute.delete("subnetworks", region=REGION, subnetwork="net")
    compute.delete("networks", network="net")
    assert gcp.leftovers() == []


# -- faults -----------------------------------------------------------------------------------------------------------


def test_no_capacity_is_told_by_the_operation(gcp: StandIn, compute: Compute) -> None:
    compute.network()
    gcp.set_capacity(ZONE, "g2-standard-4", machines=1)
    assert codes(compute.machine(machine("g2-standard-4"))) == []
    second = compute.machine(machine("g2-standard-4", name="node-1"))
    assert codes(second) == ["ZONE_RESOURCE_POOL_EXHAUSTED"]
    assert second["httpErrorStatusCode"] == 503
    assert not [path for path in gcp.leftovers() if path.endswith("node-1")]
    compute.delete("instances", zone=ZONE, instance="node-0")
    assert codes(compute.machine(machine("g2-standard-4", name="node-2"))) == []
    gcp.refuse_as_unsupported(ZONE, "g2-standard-8")
    assert codes(compute.machine(machine("g2-standard-8", name="node-3"))) == ["UNSUPPORTED_OPERATION"]
    gcp.offer("g2-standard-8", zones=["us-central1-a"])
    assert "does not exist in zone" in refused(lambda: compute.machine(machine("g2-standard-8", name="node-3")))[2]


def test_quotas_of_regions_and_of_gpu_families(gcp: StandIn, compute: Compute) -> None:
    compute.network()
    gcp.set_quota("NVIDIA_L4_GPUS", 1, region=REGION)
    gcp.set_quota("family/NVIDIA_H100", 4, region=REGION)
    assert codes(compute.machine(machine("g2-standard-4"))) == []
    over = compute.machine(machine("g2-standard-4", name="node-1"))
    assert codes(over) == ["QUOTA_EXCEEDED"]
    assert "'NVIDIA_L4_GPUS' exceeded.  Limit: 1" in over["error"]["errors"][0]["message"]
    assert codes(compute.machine(machine("a3-highgpu-8g", name="node-2"))) == ["QUOTA_EXCEEDED"]
    quotas = compute.api.regions().get(project=PROJECT, region=REGION).execute()["quotas"]
    assert {"metric": "NVIDIA_L4_GPUS", "limit": 1, "usage": 1} in quotas

    credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    session = AuthorizedSession(credentials)
    base = gcp.env["GOOGLE_CLOUD_QUOTAS_CUSTOM_ENDPOINT"]
    url = f"{base}projects/{PROJECT}/locations/global/services/compute.googleapis.com/quotaInfos"
    (info,) = [
        each for each in session.get(url).json()["quotaInfos"] if each["metric"].endswith("/gpus_per_gpu_family")
    ]
    wanted = {"gpu_family": "NVIDIA_H100", "region": REGION}
    assert [d["details"]["value"] for d in info["dimensionsInfos"] if d.get("dimensions") == wanted] == ["4"]
    skus = session.get(f"{base}services/6F81-5844-456A/skus", params={"pageSize": 5}).json()
    assert len(skus["skus"]) == 5
    assert skus["nextPageToken"] == "5"
    assert session.get(f"{base}projects/{PROJECT}").json()["lifecycleState"] == "ACTIVE"
    gcp.switch_api("compute", on=False)
    assert session.get(f"{base}projects/{PROJECT}/services/compute.googleapis.com").json()["state"] == "DISABLED"
    assert refused(compute.api.zones().list(project=PROJECT).execute)[:2] == (403, "accessNotConfigured")


def test_refusals_for_the_next_calls(gcp: StandIn, compute: Compute) -> None:
    look = compute.api.zones().list(project=PROJECT)
    gcp.fail("compute.zones.list", code=500, times=2)
    assert [refused(look.execute)[0] for _ in range(2)] == [500, 500]
    assert look.execute()["items"]
    gcp.throttle("compute.zones.*", code=429)
    assert refused(look.execute)[:2] == (429, "rateLimitExceeded")
    gcp.throttle("compute.zones.*")
    assert refused(look.execute)[:2] == (403, "rateLimitExceeded")
    gcp.deny()
    assert refused(look.execute)[:2] == (403, "forbidden")
    gcp.clear_failures()
    gcp.spoil("compute.zones.list", "malformed")
    assert look.execute() == '{"kind": "compute#'  # Google's client hands out as it is what isn't JSON
    gcp.spoil("compute.zones.list", "empty")
    assert look.execute() == ""
    assert [call["outcome"] for call in gcp.calls("compute.zones.list")] == [500, 500, 200, 429, 403, 403, 200, 200]


def test_tokens_expire_and_keys_are_revoked(gcp: StandIn, compute: Compute) -> None:
    look = compute.api.zones().list(project=PROJECT)
    gcp.expire_tokens(after_calls=1)
    assert look.execute()["items"]
    assert look.execute()["items"]  # Google's client asks for a new token after the 401
    assert [call["outcome"] for call in gcp.calls()] == [200, 401, 200]
    gcp.revoke_key()
    with pytest.raises(RefreshError, match="invalid_grant"):
        look.execute()


def test_what_was_just_made_is_not_seen_yet(gcp: StandIn, compute: Compute) -> None:
    compute.network()
    gcp.hide_new(INSERT, reads=2)
    compute.machine(machine())
    instances = compute.api.instances()
    assert "items" not in instances.list(project=PROJECT, zone=ZONE).execute()
    get = instances.get(project=PROJECT, zone=ZONE, instance="node-0")
    assert refused(get.execute)[0] == 404
    assert get.execute()["status"] == "RUNNING"


@pytest.mark.parametrize(
    ("when", "execute", "exists"), [("before", False, False), ("before", True, True), ("after", False, True)]
)
def test_a_call_hangs_until_it_is_released(
    gcp: StandIn, compute: Compute, when: Any, execute: bool, exists: bool
) -> None:
    compute.network()
    gcp.hang(INSERT, when=when)
    credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/compute"])
    session = AuthorizedSession(credentials)  # httplib2 would send the POST again after a dropped connection

    def call() -> None:
        url = f"{gcp.env['GOOGLE_COMPUTE_CUSTOM_ENDPOINT']}projects/{PROJECT}/zones/{ZONE}/instances"
        with contextlib.suppress(requests.ConnectionError):
            session.post(url, json=machine())

    caller = threading.Thread(target=call)
    caller.start()
    gcp.wait_until_hanging(INSERT)
    assert any(path.endswith("instances/node-0") for path in gcp.leftovers()) == (when == "after")
    assert gcp.release(execute=execute) == 1
    caller.join(timeout=30)
    assert any(path.endswith("instances/node-0") for path in gcp.leftovers()) == exists


def test_time_ends_machines_and_spot_ones_are_preempted(gcp: StandIn, compute: Compute) -> None:
    compute.network()
    compute.machine(machine(scheduling={"maxRunDuration": {"seconds": "3600"}, "instanceTerminationAction": "DELETE"}))
    compute.machine(machine("g2-standard-4", name="spot-0", scheduling=spot()))
    compute.machine(machine("g2-standard-4", name="spot-1", scheduling=spot(instanceTerminationAction="STOP")))
    gcp.let_time_pass(3599)
    assert gcp.resource(f"zones/{ZONE}/instances/node-0")["status"] == "RUNNING"
    gcp.let_time_pass(1)
    gcp.preempt(ZONE, "spot-0")
    gcp.preempt(ZONE, "spot-1")
    assert [path.rpartition("/")[2] for path in gcp.leftovers() if "/instances/" in path] == ["spot-1"]
    assert gcp.resource(f"zones/{ZONE}/instances/spot-1")["status"] == "TERMINATED"
    operations = compute.api.zoneOperations().list(project=PROJECT, zone=ZONE).execute()["items"]
    assert sum(each["operationType"] == "compute.instances.preempted" for each in operations) == 2
    gcp.operations_take(3)
    operation = compute.api.instances().delete(project=PROJECT, zone=ZONE, instance="spot-1").execute()
    assert [compute.wait(operation)["status"] for _ in range(3)] == ["RUNNING", "RUNNING", "DONE"]


def test_methods_outside_the_double_are_refused_by_name(compute: Compute) -> None:
    code, reason, message = refused(compute.api.snapshots().list(project=PROJECT).execute)
    assert (code, reason) == (400, "notImplementedByStandIn")
    assert "compute.snapshots.list" in message
