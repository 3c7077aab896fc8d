"""The stand-in for GCP by Google's own client: what it makes, and what it refuses at once."""

from __future__ import annotations

import uuid

import pytest

from tests.stand_ins.gcp.client import PROJECT, StandIn
from tests.stand_ins.gcp.fixtures import gcp, gcp_key
from tests.stand_ins.gcp.google_client import (
    IMAGE,
    REGION,
    ZONE,
    Body,
    Compute,
    codes,
    compute,
    machine,
    refused,
    spot,
)

__all__ = ["compute", "gcp", "gcp_key"]


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
