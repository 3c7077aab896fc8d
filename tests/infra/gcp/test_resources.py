"""What is declared for each kind of machine, by Pulumi's own mocks: no engine, no cloud."""

from __future__ import annotations

import ipaddress
from types import SimpleNamespace
from typing import Any

import pytest

from infra.cluster import Cluster
from infra.errors import ProviderError
from infra.providers.base import Deployment
from infra.providers.gcp import api, names, offers, resources
from infra.spec import ClusterSpec
from tests.infra import declaring
from tests.infra.declaring import Cloud, Made
from tests.infra.gcp.asking import asked

ZONES = ["us-central1-a", "us-central1-b"]
FREE = {"Network", "Subnetwork", "Firewall", "ResourcePolicy"}


def machine(rank: int) -> dict[str, Any]:
    return {
        "id": f"{ZONES[0]}/node-{rank}",
        "private_address": f"10.64.0.{rank + 2}",
        "public_address": "203.0.113.9" if rank == 0 else "",
        "facts": {},
    }


def outputs(_: str, made: Made) -> dict[str, Any]:
    if made.typ.startswith("gcp:filestore"):
        return {"networks": [{"ipAddresses": ["10.9.0.2"], **dict(made.inputs["networks"][0])}]}
    if made.typ.startswith("gcp:serviceaccount"):
        return {"email": f"{made.inputs['accountId']}@p.iam.gserviceaccount.com"}
    return {}


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Cloud:
    monkeypatch.setattr(api, "connect", lambda _: SimpleNamespace(project="p"))
    monkeypatch.setattr(offers, "zones_in_order", lambda *_: ZONES)
    monkeypatch.setattr(offers, "roce_zones", lambda *_: [*ZONES, "us-central1-f"])
    return Cloud(machine=machine, outputs=outputs)


def declared(cloud: Cloud, mine: Deployment, spec: ClusterSpec) -> Cluster:
    return declaring.declared(cloud, mine, spec, resources.declare)


def test_one_interface(cloud: Cloud, mine: Deployment) -> None:
    cluster = declared(cloud, mine, asked())
    kinds = cloud.counts()
    assert (kinds["Network"], kinds["Subnetwork"], kinds["Firewall"]) == (1, 1, 2)
    assert cluster.zone == "us-central1-a"
    assert cluster.head.public is not None
    assert cluster.head.public.host == "203.0.113.9"
    assert cluster.nodes[1].public is None
    assert (cluster.head.gpu_model, cluster.head.processes, cluster.head.user) == ("L4", 1, "trainstack")
    assert cloud.gang["wish"]["project"] == "p"
    assert cloud.gang["zones_are_asked_for"] is False


@pytest.mark.parametrize(
    ("machine", "market", "networks", "mtu"),
    [("a3-highgpu-8g", "on-demand", 5, 8244), ("a3-megagpu-8g", "spot", 9, 8244), ("a3-ultragpu-8g", "spot", 2, 8896)],
)
def test_host_networks(cloud: Cloud, mine: Deployment, machine: str, market: str, networks: int, mtu: int) -> None:
    declared(cloud, mine, asked(instance=machine, market=market))
    host = {name: each for name, each in cloud.of("Network").items() if name.startswith("net-")}
    assert len(host) == networks
    assert {each["mtu"] for each in host.values()} == {mtu}
    assert len(cloud.gang["wish"]["interfaces"]) == networks
    assert len({each["network"] for each in cloud.gang["wish"]["interfaces"]}) == networks
    assert len(cloud.of("Firewall")) == networks + 1


def test_rdma_has_a_network_in_every_zone_that_has_the_profile_and_no_firewall_there(
    cloud: Cloud, mine: Deployment
) -> None:
    declared(cloud, mine, asked(instance="a4-highgpu-8g", market="spot"))
    roce = {name: each for name, each in cloud.of("Network").items() if name.startswith("roce-")}
    assert set(roce) == {"roce-us-central1-a", "roce-us-central1-b", "roce-us-central1-f"}
    assert roce["roce-us-central1-b"]["networkProfile"] == "projects/p/global/networkProfiles/us-central1-b-vpc-roce"
    for place in cloud.gang["places"].values():
        assert [each["kind"] for each in place["interfaces"]] == ["MRDMA"] * 8
        assert len({each["network"] for each in place["interfaces"]}) == 1
        assert len({each["subnetwork"] for each in place["interfaces"]}) == 8
    assert not [each for each in cloud.of("Firewall").values() if "roce" in each["network"]]


def test_no_two_subnets_overlap(cloud: Cloud, mine: Deployment) -> None:
    declared(cloud, mine, asked(instance="a4-highgpu-8g", market="spot"))
    ranges = [ipaddress.ip_network(each["ipCidrRange"]) for each in cloud.of("Subnetwork").values()]
    assert len(ranges) == 2 + 3 * 8
    assert not [(a, b) for a in ranges for b in ranges if a is not b and a.overlaps(b)]


def test_ssh_is_open_to_whom_it_was_said_and_at_the_head_only(cloud: Cloud, mine: Deployment) -> None:
    declared(cloud, mine, asked(ssh_from=["203.0.113.0/24", "198.51.100.7"]))
    ssh = cloud.of("Firewall")["ssh"]
    assert ssh["sourceRanges"] == ["203.0.113.0/24", "198.51.100.7/32"]
    assert ssh["targetTags"] == [names.name(mine, "head")]
    assert ssh["allows"] == [{"protocol": "tcp", "ports": ["22"]}]
    within = cloud.of("Firewall")["within-0"]
    assert within["sourceRanges"] == [cloud.of("Subnetwork")["net-0"]["ipCidrRange"]]


def test_the_callers_own_address_is_the_default(
    cloud: Cloud, mine: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.own_address.find", lambda: "198.51.100.1/32")
    declared(cloud, mine, asked(ssh_from=None))
    assert cloud.of("Firewall")["ssh"]["sourceRanges"] == ["198.51.100.1/32"]


def test_an_own_address_of_another_kind_is_refused(
    cloud: Cloud, mine: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.own_address.find", lambda: "2001:db8::1/128")
    with pytest.raises(ProviderError, match="ssh_from"):
        declared(cloud, mine, asked(ssh_from=None))


@pytest.mark.parametrize(
    ("keys", "routers"),
    [({}, 1), ({"nodes": 1}, 0), ({"egress": "endpoints"}, 0)],
    ids=["nat", "one node", "endpoints"],
)
def test_nat_only_where_somebody_needs_it(
    cloud: Cloud, mine: Deployment, keys: dict[str, object], routers: int
) -> None:
    declared(cloud, mine, asked(**keys))
    assert cloud.counts()["Router"] == cloud.counts()["RouterNat"] == routers
    assert cloud.of("Subnetwork")["net-0"]["privateIpGoogleAccess"] is True


def test_what_bills_comes_after_the_gang(cloud: Cloud, mine: Deployment) -> None:
    declared(cloud, mine, asked(storage={"kind": "nfs", "size_gib": 1024}))
    order = [each.typ.rpartition(":")[2] if each.name != "gang" else "gang" for each in cloud.made]
    after = set(order[order.index("gang") + 1 :])
    assert {"Router", "RouterNat", "Instance"} <= after
    assert not after & FREE


def test_filestore(cloud: Cloud, mine: Deployment) -> None:
    cluster = declared(cloud, mine, asked(storage={"kind": "nfs", "size_gib": 1024}))
    assert cluster.storage is not None
    assert (cluster.storage.kind, cluster.storage.address) == ("nfs", "10.9.0.2:/shared")
    assert cluster.shared_storage is None
    assert cloud.of("Instance")["shared"]["location"] == "us-central1-a"
    assert mine.storage_marker.exists()


def test_bucket_with_an_account_that_may_nothing_else(cloud: Cloud, mine: Deployment) -> None:
    cluster = declared(cloud, mine, asked(storage={"kind": "bucket"}))
    assert cluster.storage is not None
    assert cluster.storage.address == f"gs://{names.bucket(mine)}"
    right = cloud.of("BucketIAMMember")["nodes"]
    assert right["role"] == "roles/storage.objectUser"
    assert right["member"] == f"serviceAccount:{cloud.gang['wish']['service_account']}"
    bucket = cloud.of("Bucket")["shared"]
    assert bucket["publicAccessPrevention"] == "enforced"
    assert bucket["softDeletePolicy"]["retentionDurationSeconds"] == 0


def test_everything_says_whose_it_is(cloud: Cloud, mine: Deployment) -> None:
    declared(cloud, mine, asked(instance="a4-highgpu-8g", market="spot", storage={"kind": "bucket"}))
    without = {"RouterNat", "BucketIAMMember"}  # parts of a router and a bucket
    for each in cloud.made:
        kind = each.typ.rpartition(":")[2]
        if each.typ.startswith("gcp:") and kind not in without:
            assert names.owner_of(dict(each.inputs)) == mine.owner, each.name


def test_placement_is_near_and_asks_for_no_number(cloud: Cloud, mine: Deployment) -> None:
    declared(cloud, mine, asked())
    assert cloud.of("ResourcePolicy")["near"]["groupPlacementPolicy"] == {"collocation": "COLLOCATED"}


def test_flex_start_waits_for_two_hours(cloud: Cloud, mine: Deployment) -> None:
    declared(cloud, mine, asked(market="flex-start"))
    assert cloud.gang["wish"]["wait_s"] == 7200
    assert cloud.gang["what"] == "g2-standard-8 flex-start"
