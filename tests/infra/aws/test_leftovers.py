"""What is still there by AWS's own answer, wherever and in whatever state, and how it is ended in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3
import pytest

from infra import leftovers as command
from infra.errors import AccessError, LeftoversError, ProviderError
from infra.providers.aws import PROVIDER, api, plan, removal, storage
from infra.providers.aws import leftovers as aws_leftovers
from infra.providers.base import Deployment, IncompleteError, Leftover
from tests.infra.aws.asking import Place, deployment, ec2, existing, listed, order, tag_list, tagged
from tests.stand_ins.aws.client import StandIn

POLICY = """{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}]}"""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits take no time."""
    monkeypatch.setattr(removal, "time", Clock())


@pytest.fixture(autouse=True)
def _few_regions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of them, but for the test that is named for all."""
    if "empty_account" in request.node.name:
        return
    pages = api.pages

    def few(service: str, region: str, operation: str, key: str, **parameters: Any) -> Any:
        if operation == "describe_regions":
            return iter({"RegionName": name} for name in ("us-east-1", "us-west-2", "eu-west-1", "ap-south-1"))
        return pages(service, region, operation, key, **parameters)

    monkeypatch.setattr(api, "pages", few)


class Clock:
    """Only sleep makes its time pass, and that at once."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


class Everything(Place):
    """One of each kind that can be there."""

    def __init__(self, mine: Deployment, **where: Any) -> None:
        super().__init__(mine, **where)
        ec2, zone = self.ec2, f"{self.region}a"
        subnet = self.places[zone]["public_subnet"]
        self.gateway = ec2.create_internet_gateway(TagSpecifications=tagged("internet-gateway", mine))
        self.gateway = self.gateway["InternetGateway"]["InternetGatewayId"]
        ec2.attach_internet_gateway(InternetGatewayId=self.gateway, VpcId=self.vpc)
        table = ec2.create_route_table(VpcId=self.vpc, TagSpecifications=tagged("route-table", mine))["RouteTable"]
        ec2.create_vpc_endpoint(
            VpcId=self.vpc,
            VpcEndpointType="Gateway",
            ServiceName=f"com.amazonaws.{self.region}.s3",
            RouteTableIds=[table["RouteTableId"]],
            TagSpecifications=tagged("vpc-endpoint", mine),
        )
        address = ec2.allocate_address(Domain="vpc", TagSpecifications=tagged("elastic-ip", mine))["AllocationId"]
        ec2.create_nat_gateway(SubnetId=subnet, AllocationId=address, TagSpecifications=tagged("natgateway", mine))
        ec2.create_volume(AvailabilityZone=zone, Size=100, TagSpecifications=tagged("volume", mine))
        ec2.create_network_interface(
            SubnetId=subnet, Groups=[self.group], TagSpecifications=tagged("network-interface", mine)
        )
        self.instance_id = self.machines().launch(order(zone=zone))

    def shared_storage(self) -> None:
        efs, fsx = (boto3.client(service, region_name=self.region) for service in ("efs", "fsx"))
        subnet = self.places[f"{self.region}a"]["private_subnet"]
        made = efs.create_file_system(CreationToken="token", Tags=tag_list(self.mine))
        efs.create_mount_target(FileSystemId=made["FileSystemId"], SubnetId=subnet, SecurityGroups=[self.group])
        fsx.create_file_system(
            FileSystemType="LUSTRE", StorageCapacity=1200, SubnetIds=[subnet], Tags=tag_list(self.mine)
        )

    def bucket(self) -> str:
        """With two versions of one object, one that was deleted, and an upload that nobody ended."""
        s3 = boto3.client("s3", region_name="us-east-1")
        name = storage.name(self.mine)
        s3.create_bucket(Bucket=name)
        s3.put_bucket_tagging(Bucket=name, Tagging={"TagSet": tag_list(self.mine)})
        s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
        for key in ("a", "a", "b"):
            s3.put_object(Bucket=name, Key=key, Body=b"x")
        s3.delete_object(Bucket=name, Key="b")
        s3.create_multipart_upload(Bucket=name, Key="c")
        return name

    def role(self) -> str:
        iam = boto3.client("iam", region_name="us-east-1")
        name = storage.name(self.mine)
        iam.create_role(RoleName=name, Path=storage.PATH, AssumeRolePolicyDocument="{}", Tags=tag_list(self.mine))
        iam.put_role_policy(RoleName=name, PolicyName="bucket", PolicyDocument=POLICY)
        iam.create_instance_profile(InstanceProfileName=name, Path=storage.PATH)
        iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
        return name


def write_stack_file(mine: Deployment) -> None:
    mine.stack_file.parent.mkdir()
    mine.stack_file.write_text("config: {'trainstack:cluster': {provider: aws, region: us-east-1, gpus: 'H100:8'}}")


def remove_all(mine: Deployment) -> None:
    for each in PROVIDER.leftovers(mine):
        PROVIDER.remove(each, mine)


def one(kind: str, id_: str) -> Leftover:
    return Leftover(kind=kind, id=f"us-east-1/{id_}", detail="", usd_per_hour=0.0)


# -- what is listed -------------------------------------------------------------------------------------------------


def test_an_empty_account_has_nothing_in_any_region(mine: Deployment, aws: StandIn) -> None:
    assert PROVIDER.leftovers(mine) == []
    assert aws.resources() == {}
    regions = {each["RegionName"] for each in ec2().describe_regions()["Regions"]}
    assert {call["region"] for call in aws.operations("DescribeInstances")} == regions


def test_everything_is_listed_in_the_order_of_removal_and_removed_to_nothing(mine: Deployment, aws: StandIn) -> None:
    every = Everything(mine)
    every.shared_storage()
    every.bucket()
    every.role()
    assert listed(mine) == existing(aws)
    found = PROVIDER.leftovers(mine)
    assert list(dict.fromkeys(each.kind for each in found)) == [
        *("instance", "file system (Lustre)", "file system (EFS)", "NAT gateway", "address", "volume", "endpoint"),
        *("network interface", "placement group", "security group", "subnet", "route table", "internet gateway"),
        *("network (VPC)", "bucket", "role"),
    ]
    assert [each.kind for each in found if each.is_machine] == ["instance"]
    assert all(each.is_ours for each in found)
    remove_all(mine)
    assert PROVIDER.leftovers(mine) == []
    assert aws.resources() == {}


def test_what_bills_has_its_price_and_what_is_unknown_has_none(mine: Deployment, aws: StandIn) -> None:
    aws.price("g5.xlarge", 1.5)
    every = Everything(mine)
    every.shared_storage()
    every.bucket()
    price = {each.kind: each.usd_per_hour for each in PROVIDER.leftovers(mine)}
    assert (price["instance"], price["NAT gateway"], price["address"]) == (1.5, 0.045, 0.005)
    assert price["file system (Lustre)"] == pytest.approx(0.14 * 1200 / 730)
    assert price["bucket"] is None
    assert price["subnet"] == 0.0


def test_a_machine_is_listed_in_every_state_but_the_last(mine: Deployment, aws: StandIn) -> None:
    place = Place(mine, letters="a")
    running, stopped, ending, ended = (
        place.machines().launch(order(f"node-{rank}", token=f"{rank}" * 32)) for rank in range(4)
    )
    place.ec2.stop_instances(InstanceIds=[stopped])
    place.ec2.terminate_instances(InstanceIds=[ended])
    aws.terminate_slowly(describes=10)
    place.ec2.terminate_instances(InstanceIds=[ending])
    found = {each.id: each.detail for each in PROVIDER.leftovers(mine) if each.kind == "instance"}
    assert found == {
        f"us-east-1/{running}": "g5.xlarge, running, us-east-1, aws-node-0",
        f"us-east-1/{stopped}": "g5.xlarge, stopped, us-east-1, aws-node-1",
        f"us-east-1/{ending}": "g5.xlarge, shutting-down, us-east-1, aws-node-2",
    }


@pytest.mark.parametrize("other", ["eu-west-1", "us-west-2"])
def test_another_region_than_the_stack_file_s_is_searched_too(mine: Deployment, aws: StandIn, other: str) -> None:
    write_stack_file(mine)
    Everything(mine, region=other)
    found = PROVIDER.leftovers(mine)
    assert {each.id.partition("/")[0] for each in found} == {other}
    assert len([each for each in found if each.kind == "subnet"]) == 4
    remove_all(mine)
    assert aws.resources() == {}


def test_what_has_no_machine_is_found_in_another_region_by_the_tags(mine: Deployment, aws: StandIn) -> None:
    ec2("ap-south-1").create_vpc(CidrBlock="10.77.0.0/16", TagSpecifications=tagged("vpc", mine))
    assert [each.kind for each in PROVIDER.leftovers(mine)] == ["network (VPC)"]
    remove_all(mine)
    assert aws.resources() == {}


@pytest.mark.usefixtures("aws")
def test_another_checkout_s_things_are_flagged_and_another_stack_s_are_not_listed(
    mine: Deployment, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    Place(deployment(tmp_path / "other"), letters="a").machines().launch(order())
    found = PROVIDER.leftovers(mine)
    assert "instance" in {each.kind for each in found}
    assert not any(each.is_ours for each in found)
    assert PROVIDER.leftovers(deployment(mine.root, "another")) == []


def test_the_sweep_of_make_destroy_leaves_another_checkout_s_machines_alone(
    mine: Deployment, aws: StandIn, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    theirs = Place(deployment(tmp_path / "other"), letters="a").machines().launch(order())
    Place(mine, letters="a").machines().launch(order(token="1" * 32))
    write_stack_file(mine)
    command.sweep(mine.root, mine.stack)
    assert aws.resources()["instance"] == [theirs]
    with pytest.raises(LeftoversError, match="fab leftovers --stack aws --remove"):
        command.check(mine.root, mine.stack)
    command.sweep_all(mine.root, mine.stack)
    assert aws.resources() == {}


# -- answers that are none ------------------------------------------------------------------------------------------


def test_an_answer_without_its_list_is_an_error_and_not_nothing(
    mine: Deployment, aws: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    del aws
    client = api.client("ec2", "us-east-1")
    monkeypatch.setattr(client, "can_paginate", lambda _: False)
    monkeypatch.setattr(client, "describe_instances", lambda **_: {"ResponseMetadata": {}})
    told = "describe_instances in us-east-1: the answer has no Reservations, so it tells nothing"
    with pytest.raises(ProviderError, match=told):
        PROVIDER.leftovers(mine)


def test_a_region_that_may_not_be_asked_is_an_error_and_not_nothing(mine: Deployment, aws: StandIn) -> None:
    aws.fail("DescribeVolumes", "UnauthorizedOperation", times=1)
    write_stack_file(mine)
    with pytest.raises(IncompleteError, match="describe_volumes in us-east-1") as error:
        PROVIDER.leftovers(mine)
    assert error.value.exit_code == AccessError.exit_code


def test_the_region_of_the_record_is_searched_whatever_the_stack_file_says(mine: Deployment, aws: StandIn) -> None:
    del aws
    mine.gang_folder.mkdir(parents=True)
    (mine.gang_folder / "gang.json").write_text('{"provider": "aws", "zone": "eu-west-1b"}')
    assert aws_leftovers._known_regions(mine) == {"eu-west-1"}
    mine.stack_file.parent.mkdir()
    mine.stack_file.write_text("config: {'trainstack:cluster': {provider: aws, zones: [us-west-2a]}}")
    assert aws_leftovers._known_regions(mine) == {"eu-west-1", "us-west-2"}
    assert plan.region_of_zone("us-west-2a") == "us-west-2"


# -- removal --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("aws")
@pytest.mark.parametrize("kind", [kind.name for kind in aws_leftovers.KINDS] + ["bucket", "role"])
def test_what_was_removed_by_hand_meanwhile_has_been_removed(mine: Deployment, kind: str) -> None:
    ids = {
        "instance": "i-00000000000000000",
        "file system (Lustre)": "fs-00000000000000000",
        "file system (EFS)": "fs-00000000",
        "NAT gateway": "nat-00000000000000000",
        "address": "eipalloc-00000000000000000",
        "volume": "vol-00000000000000000",
        "endpoint": "vpce-00000000000000000",
        "network interface": "eni-00000000000000000",
        "placement group": "trainstack-none",
        "security group": "sg-00000000000000000",
        "subnet": "subnet-00000000000000000",
        "route table": "rtb-00000000000000000",
        "internet gateway": "igw-00000000000000000",
        "network (VPC)": "vpc-00000000000000000",
        "bucket": "trainstack-none",
        "role": "trainstack-none",
    }
    PROVIDER.remove(one(kind, ids[kind]), mine)


@pytest.mark.parametrize(
    ("operation", "kind"),
    [("DeleteSecurityGroup", "security group"), ("DeleteSubnet", "subnet"), ("DeleteVpc", "network (VPC)")],
)
def test_what_is_in_use_for_a_while_is_removed_then(mine: Deployment, aws: StandIn, operation: str, kind: str) -> None:
    Place(mine, letters="a")
    aws.dependency_violation(operation, 3)
    remove_all(mine)
    assert kind not in listed(mine)
    assert aws.resources() == {}


def test_what_is_in_use_for_ever_is_named(mine: Deployment, aws: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(mine, letters="a")
    aws.dependency_violation("DeleteSecurityGroup", 1000)
    with pytest.raises(
        ProviderError,
        match=rf"{place.group} in us-east-1 is held by something else .*DependencyViolation.*`make destroy` again",
    ):
        PROVIDER.remove(one("security group", place.group), mine)
    told = capsys.readouterr().err.splitlines()
    assert told == [f"waiting for AWS: {place.group} in us-east-1 is held by something else still"] * 5  # of 180 s


def test_what_holds_a_group_and_its_network_is_named_and_left_alone(mine: Deployment, aws: StandIn) -> None:
    """A group of the user's own, in our network; the two let each other in."""
    place = Place(mine, letters="a")
    users = place.ec2.create_security_group(VpcId=place.vpc, GroupName="users", Description="-")["GroupId"]
    for group, other in ((users, place.group), (place.group, users)):
        rule = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": other}]}
        place.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
    with pytest.raises(
        ProviderError, match=rf"{place.group} in us-east-1 is held by {users} still .*end that, and run"
    ):
        PROVIDER.remove(one("security group", place.group), mine)
    with pytest.raises(LeftoversError, match=rf"{place.vpc} in us-east-1 is held by .*{users}"):
        command.sweep_all(mine.root, mine.stack)
    assert users in aws.resources()["security group"]
    rule = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": place.group}]}
    place.ec2.revoke_security_group_ingress(GroupId=users, IpPermissions=[rule])
    PROVIDER.remove(one("security group", place.group), mine)
    place.ec2.delete_security_group(GroupId=users)
    command.sweep_all(mine.root, mine.stack)
    assert aws.resources() == {}


def test_one_thing_that_stays_does_not_hide_the_others_and_a_second_run_finishes(
    mine: Deployment, aws: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(mine, letters="a")
    place.machines().launch(order())
    aws.dependency_violation("DeleteSecurityGroup", 10**6)
    with pytest.raises(LeftoversError, match=rf"2 thing\(s\) could not be removed \(.*{place.group}.*held by"):
        command.sweep_all(mine.root, mine.stack)
    assert place.group in capsys.readouterr().out
    assert set(aws.resources()) == {"security group", "vpc"}
    aws.clear_faults()
    command.sweep_all(mine.root, mine.stack)
    assert aws.resources() == {}


@pytest.mark.parametrize("operation", ["DeleteSubnet", "DeleteVpc", "TerminateInstances"])
def test_server_errors_at_removal_pass(mine: Deployment, aws: StandIn, operation: str) -> None:
    Place(mine, letters="a").machines().launch(order())
    aws.server_error(operation, 1)
    remove_all(mine)
    assert aws.resources() == {}


def test_a_gateway_that_does_not_go_is_named(mine: Deployment, aws: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    del aws
    monkeypatch.setattr(removal.api, "pages", lambda *_, **__: iter([{"State": "deleting"}]))
    with pytest.raises(
        ProviderError, match="NAT gateway nat-00000000000000000 in us-east-1 was told to end and hasn't"
    ):
        PROVIDER.remove(one("NAT gateway", "nat-00000000000000000"), mine)


def test_an_unfinished_upload_and_old_versions_do_not_hold_a_bucket(mine: Deployment, aws: StandIn) -> None:
    every = Everything(mine)
    name = every.bucket()
    PROVIDER.remove(one("bucket", name), mine)
    assert "bucket" not in aws.resources()


def test_a_bucket_that_was_killed_before_it_got_its_tags_is_known_by_its_name(mine: Deployment, aws: StandIn) -> None:
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket=storage.name(mine))
    (found,) = PROVIDER.leftovers(mine)
    assert (found.kind, found.is_ours) == ("bucket", True)
    PROVIDER.remove(found, mine)
    assert aws.resources() == {}


def test_a_bucket_of_somebody_else_s_is_not_touched(mine: Deployment, aws: StandIn) -> None:
    s3 = boto3.client("s3", region_name="us-east-1")
    s3.create_bucket(Bucket="trainstack-of-somebody-else")
    assert PROVIDER.leftovers(mine) == []
    assert aws.resources() == {"bucket": ["trainstack-of-somebody-else"]}
