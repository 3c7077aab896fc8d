"""What is declared on AWS for each kind of stack file, by Pulumi's own mocks: no engine, no cloud."""

from __future__ import annotations

import ipaddress
import json
from datetime import UTC, datetime
from typing import Any

import pulumi
import pytest

from infra import own_address
from infra.cluster import Cluster
from infra.errors import ProviderError
from infra.gang_record import Record
from infra.providers.aws import plan, resources
from infra.providers.base import Deployment
from infra.spec import ClusterSpec
from tests.infra import declaring
from tests.infra.aws.asking import HEAD_ADDRESS, asked, aws_cloud
from tests.infra.declaring import PRICE, Cloud

# The SDK warns of its own deprecated modules when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
ZONES = ("us-east-1a", "us-east-1b")


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Cloud:
    monkeypatch.setattr(plan, "standard_zones", lambda _: ZONES)
    monkeypatch.setattr(plan, "offering_zones", lambda *_: ZONES)
    return aws_cloud()


def declared(cloud: Cloud, mine: Deployment, spec: ClusterSpec) -> Cluster:
    return declaring.declared(cloud, mine, spec, resources.declare)


# -- what is there -------------------------------------------------------------------------------------------------


def test_the_cluster_that_comes_out(cloud: Cloud, mine: Deployment) -> None:
    cluster = declared(cloud, mine, asked(nodes=3, processes_per_node=4))
    assert (cluster.provider, cluster.region, cluster.zone, cluster.stack) == ("aws", "us-east-1", "us-east-1a", "aws")
    assert cluster.head.public is not None
    assert cluster.head.public.host == HEAD_ADDRESS
    assert [node.public for node in cluster.nodes[1:]] == [None, None]
    assert [(node.name, node.rank, node.provider_id) for node in cluster.nodes] == [
        (f"node-{rank}", rank, f"i-{rank}") for rank in range(3)
    ]
    assert {(node.gpu_model, node.gpu_count, node.cpu_threads, node.processes) for node in cluster.nodes} == {
        ("H100", 8, 192, 4)
    }
    assert (cluster.storage, cluster.shared_storage) == (None, None)
    assert (cluster.price, cluster.expires_at - cluster.created_at) == (
        PRICE,
        datetime(2026, 12, 4) - datetime(2026, 12, 3),
    )


def test_without_a_number_each_gpu_gets_a_process(cloud: Cloud, mine: Deployment) -> None:
    assert declared(cloud, mine, asked()).world_size == 16


def test_every_resource_gets_the_stack_s_marks_from_the_provider(cloud: Cloud, mine: Deployment) -> None:
    declared(cloud, mine, asked())
    (provider,) = cloud.of("aws").values()
    assert provider["region"] == "us-east-1"
    tags = provider["defaultTags"]
    tags = json.loads(tags) if isinstance(tags, str) else tags
    assert tags["tags"] == {"trainstack": mine.identity, "trainstack-owner": mine.owner}
    without = [each.name for each in cloud.made if each.typ.startswith("aws:") and not each.provider]
    assert without == []


def test_a_public_and_a_private_subnet_and_a_placement_group_in_each_zone(cloud: Cloud, mine: Deployment) -> None:
    declared(cloud, mine, asked())
    subnets = cloud.of("Subnet")
    assert set(subnets) == {f"{kind}-{zone}" for kind in ("public", "private") for zone in ZONES}
    assert {each["mapPublicIpOnLaunch"] for each in subnets.values()} == {False}
    blocks = [ipaddress.ip_network(each["cidrBlock"]) for each in subnets.values()]
    assert not any(one.overlaps(other) for one in blocks for other in blocks if one is not other)
    groups = cloud.of("PlacementGroup")
    assert {each["strategy"] for each in groups.values()} == {"cluster"}
    assert {zone: place["placement_group"] for zone, place in cloud.gang["places"].items()} == {
        zone: f"trainstack-{mine.digest}-{zone}-made-up" for zone in ZONES
    }
    # A name of ours would be taken by the group of an `up` that was killed while it made it.
    assert not [each for each in groups.values() if "name" in each]
    routes = {name: each["routeTableId"] for name, each in cloud.of("RouteTableAssociation").items()}
    assert routes == {name: f"id-of-{name.partition('-')[0]}" for name in subnets}


def test_zones_keep_their_order_and_only_those_asked_for_get_subnets(cloud: Cloud, mine: Deployment) -> None:
    cluster = declared(cloud, mine, asked(region=None, zones=["us-east-1b"]))
    assert cluster.zone == "us-east-1b"
    assert (cloud.gang["zones"], cloud.gang["zones_are_asked_for"]) == (["us-east-1b"], True)
    assert set(cloud.of("Subnet")) == {"public-us-east-1b", "private-us-east-1b"}


def test_the_gang_is_told_what_to_launch(cloud: Cloud, mine: Deployment) -> None:
    declared(cloud, mine, asked(market="spot", disk_gib=500, max_lifetime="2h"))
    gang = cloud.gang
    assert gang["wish"] == {
        "region": "us-east-1",
        "instance": "p5.48xlarge",
        "market": "spot",
        "image": "deep-learning",
        "disk_gib": 500,
        "reservation": "",
        "reservation_kind": "",
        "security_group": "id-of-members",
        "instance_profile": "",
    }
    assert (gang["what"], gang["lifetime_s"], gang["nodes"]) == ("p5.48xlarge (spot)", 7200, 2)
    assert "PRIVATE" not in json.dumps(gang)


# -- out and in ----------------------------------------------------------------------------------------------------


def test_nat_is_one_gateway_in_the_gang_s_own_zone(cloud: Cloud, mine: Deployment) -> None:
    declared(cloud, mine, asked(region=None, zones=["us-east-1b", "us-east-1a"]))
    (gateway,) = cloud.of("NatGateway").values()
    assert gateway["subnetId"] == "id-of-public-us-east-1b"
    assert set(cloud.of("Eip")) == {"head", "nat"}
    route = cloud.of("Route")["private-out"]
    assert (route["routeTableId"], route["natGatewayId"], route["destinationCidrBlock"]) == (
        "id-of-private",
        "id-of-nat",
        "0.0.0.0/0",
    )


@pytest.mark.parametrize("keys", [{"nodes": 1}, {"egress": "endpoints"}, {"nodes": 1, "egress": "endpoints"}])
def test_one_node_or_endpoints_alone_have_no_nat(cloud: Cloud, mine: Deployment, keys: dict[str, Any]) -> None:
    declared(cloud, mine, asked(**keys))
    assert cloud.counts()["NatGateway"] == 0
    assert set(cloud.of("Eip")) == {"head"}
    assert set(cloud.of("Route")) == {"public-out"}


def test_s3_is_reached_without_nat_and_free_of_charge(cloud: Cloud, mine: Deployment) -> None:
    declared(cloud, mine, asked(region="eu-west-1"))
    (endpoint,) = cloud.of("VpcEndpoint").values()
    assert (endpoint["vpcEndpointType"], endpoint["serviceName"]) == ("Gateway", "com.amazonaws.eu-west-1.s3")
    assert endpoint["routeTableIds"] == ["id-of-public", "id-of-private"]


def test_the_head_s_address_hangs_on_its_first_interface(cloud: Cloud, mine: Deployment) -> None:
    declared(cloud, mine, asked())
    (association,) = cloud.of("EipAssociation").values()
    assert (association["networkInterfaceId"], association["allocationId"]) == ("eni-0", "eipalloc-head")


# -- who may come in -----------------------------------------------------------------------------------------------


def doors(cloud: Cloud) -> list[str]:
    """The networks that ingress rules let in, sorted; each by SSH alone."""
    found = []
    for rule in cloud.of("SecurityGroupIngressRule").values():
        assert rule["securityGroupId"] == "id-of-members"
        if "referencedSecurityGroupId" in rule:
            continue
        assert (rule["ipProtocol"], rule["fromPort"], rule["toPort"]) == ("tcp", 22, 22)
        found.append(rule.get("cidrIpv4") or rule["cidrIpv6"])
    return sorted(found)  # resources are registered in no order


@pytest.mark.parametrize(
    ("ssh_from", "open_to"),
    [
        (["203.0.113.7"], ["203.0.113.7/32"]),
        (["203.0.113.0/24", "198.51.100.4"], ["198.51.100.4/32", "203.0.113.0/24"]),
    ],
)
def test_ssh_is_open_to_those_named_and_nobody_else(
    cloud: Cloud, mine: Deployment, ssh_from: list[str], open_to: list[str]
) -> None:
    declared(cloud, mine, asked(ssh_from=ssh_from))
    assert doors(cloud) == open_to


def test_by_default_ssh_is_open_to_the_address_that_this_machine_is_seen_with(
    cloud: Cloud, mine: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(own_address, "find", lambda: "192.0.2.44/32")
    monkeypatch.setattr(pulumi.log, "info", lambda text, *_: said.append(text))
    declared(cloud, mine, asked(ssh_from=None))
    assert doors(cloud) == ["192.0.2.44/32"]
    assert said == ["SSH to the head is open to 192.0.2.44/32 and nobody else (key ssh_from)"]


def test_without_an_address_to_be_found_nothing_is_declared(
    cloud: Cloud, mine: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> str:
        raise ProviderError("the address could not be found: write it under ssh_from")

    monkeypatch.setattr(own_address, "find", none)
    with pytest.raises(ProviderError, match="write it under ssh_from"):
        declared(cloud, mine, asked(ssh_from=None))
    assert not cloud.of("SecurityGroup")


def test_the_world_comes_in_only_where_it_is_written_and_with_a_warning(
    cloud: Cloud, mine: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", lambda text, *_: warned.append(text))
    declared(cloud, mine, asked(ssh_from=["0.0.0.0/0"]))
    assert doors(cloud) == ["0.0.0.0/0"]
    assert warned == ["SSH to the head is open to the whole world, as ssh_from says"]


def test_machines_that_run_keep_their_lifetime_and_the_user_is_told(
    cloud: Cloud, mine: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", lambda text, *_: warned.append(text))
    now = datetime(2026, 12, 3, tzinfo=UTC)
    Record(mine.gang_folder, provider="aws", now=now).restart(now, request={"lifetime_s": 7200}, pinned={})
    declared(cloud, mine, asked(max_lifetime="2h"))
    assert warned == []
    declared(cloud, mine, asked(max_lifetime="5h"))
    assert warned == [
        "machines that run keep the lifetime they were made with, 2 h: the new max_lifetime, 5 h, is that of the next "
        "gang (`make destroy`, then `pulumi up`)"
    ]


def test_members_reach_one_another_by_rules_in_and_out(cloud: Cloud, mine: Deployment) -> None:
    declared(cloud, mine, asked())
    for kind in ("SecurityGroupIngressRule", "SecurityGroupEgressRule"):
        own = [each for each in cloud.of(kind).values() if each.get("referencedSecurityGroupId")]
        assert [(each["referencedSecurityGroupId"], each["ipProtocol"]) for each in own] == [("id-of-members", "-1")]
    (group,) = cloud.of("SecurityGroup").values()
    assert not group.get("ingress")  # no rules but those above


# -- storage -------------------------------------------------------------------------------------------------------


def test_lustre_is_in_the_gang_s_subnet_and_group(cloud: Cloud, mine: Deployment) -> None:
    cluster = declared(cloud, mine, asked(storage={"kind": "lustre", "size_gib": 2400}))
    (filesystem,) = cloud.of("LustreFileSystem").values()
    assert (filesystem["storageCapacity"], filesystem["deploymentType"]) == (2400, "SCRATCH_2")
    assert (filesystem["subnetIds"], filesystem["securityGroupIds"]) == ("id-of-private-us-east-1a", ["id-of-members"])
    assert cluster.storage is not None
    assert (cluster.storage.kind, cluster.storage.address) == (
        "lustre",
        "fs-1.fsx.us-east-1.amazonaws.com@tcp:/abc",
    )


def test_nfs_is_encrypted_and_has_its_target_in_the_gang_s_subnet(cloud: Cloud, mine: Deployment) -> None:
    cluster = declared(cloud, mine, asked(storage={"kind": "nfs"}))
    (filesystem,) = cloud.of("FileSystem").values()
    assert (filesystem["encrypted"], filesystem["throughputMode"]) == (True, "elastic")
    (target,) = cloud.of("MountTarget").values()
    assert (target["subnetId"], target["securityGroups"]) == ("id-of-private-us-east-1a", ["id-of-members"])
    assert cluster.storage is not None
    assert (cluster.storage.kind, cluster.storage.address) == ("nfs", "10.77.64.99:/")


def test_a_bucket_comes_with_a_role_that_may_do_nothing_else(cloud: Cloud, mine: Deployment) -> None:
    cluster = declared(cloud, mine, asked(storage={"kind": "bucket"}))
    (bucket,) = cloud.of("Bucket").values()
    arn = f"arn:aws:s3:::{bucket['bucket']}"
    (policy,) = cloud.of("RolePolicy").values()
    for statement in json.loads(policy["policy"])["Statement"]:
        assert statement["Effect"] == "Allow"
        assert statement["Resource"] in (arn, f"{arn}/*")
        assert all(action.startswith("s3:") and "*" not in action for action in statement["Action"])
    (role,) = cloud.of("Role").values()
    (trust,) = json.loads(role["assumeRolePolicy"])["Statement"]
    assert trust["Principal"] == {"Service": "ec2.amazonaws.com"}
    assert not cloud.of("RolePolicyAttachment")
    assert cloud.gang["wish"]["instance_profile"] == cloud.of("InstanceProfile")["nodes"]["name"]
    assert cluster.storage is not None
    assert cluster.storage.address == "s3://id-of-shared"


def test_a_bucket_is_closed_to_the_world_and_to_plain_http(cloud: Cloud, mine: Deployment) -> None:
    declared(cloud, mine, asked(storage={"kind": "bucket"}))
    (block,) = cloud.of("BucketPublicAccessBlock").values()
    wanted = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")
    assert [block[key] for key in wanted] == [True] * 4
    (policy,) = cloud.of("BucketPolicy").values()
    (statement,) = json.loads(policy["policy"])["Statement"]
    assert (statement["Effect"], statement["Condition"]) == ("Deny", {"Bool": {"aws:SecureTransport": "false"}})


def test_without_storage_there_is_no_role(cloud: Cloud, mine: Deployment) -> None:
    declared(cloud, mine, asked())
    kinds = cloud.counts()
    assert not any(kinds[kind] for kind in ("Role", "InstanceProfile", "Bucket", "FileSystem", "LustreFileSystem"))


# -- reservations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["default", "capacity-block"])
def test_a_reservation_takes_its_zone_and_no_placement_group(
    cloud: Cloud, mine: Deployment, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    held = {"AvailabilityZone": "us-east-1b", "ReservationType": kind, "InstanceType": "p5.48xlarge"}
    monkeypatch.setattr(plan, "reservation", lambda *_: held)
    declared(cloud, mine, asked(reservation="cr-0123456789abcdef0"))
    assert cloud.gang["zones"] == ["us-east-1b"]
    assert {place["placement_group"] for place in cloud.gang["places"].values()} == {""}
    wish = cloud.gang["wish"]
    assert (wish["reservation"], wish["reservation_kind"]) == ("cr-0123456789abcdef0", kind)
    assert cloud.gang["what"] == "p5.48xlarge (reserved)"
