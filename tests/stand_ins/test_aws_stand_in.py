"""The stand-in for AWS itself: each addition to moto and each fault by boto3."""

from __future__ import annotations

import re
import threading
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.stand_ins.aws.client import StandIn, StandInError
from tests.stand_ins.aws.fixtures import aws, aws_server

__all__ = ["aws", "aws_server"]

UBUNTU = "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id"
DEEP_LEARNING = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"


def client(service: str = "ec2", *, region: str = "us-east-1", attempts: int = 1) -> Any:
    retries = {"total_max_attempts": attempts, "mode": "standard"}
    return boto3.client(service, region_name=region, config=Config(retries=retries))


class Network:
    """A VPC with a subnet in us-east-1b and a group."""

    def __init__(self) -> None:
        self.ec2 = client()
        self.vpc = self.ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        subnet = self.ec2.create_subnet(VpcId=self.vpc, CidrBlock="10.0.0.0/24", AvailabilityZone="us-east-1b")
        self.subnet = subnet["Subnet"]["SubnetId"]
        self.group = self.ec2.create_security_group(VpcId=self.vpc, GroupName="gang", Description="-")["GroupId"]
        self.image = client("ssm").get_parameter(Name=DEEP_LEARNING)["Parameter"]["Value"]

    def launch(self, **other: Any) -> list[str]:
        wanted = {
            "ImageId": self.image,
            "InstanceType": "g5.12xlarge",
            "MinCount": 1,
            "MaxCount": 1,
            "NetworkInterfaces": [{"DeviceIndex": 0, "SubnetId": self.subnet, "Groups": [self.group]}],
        }
        answer = self.ec2.run_instances(**(wanted | other))
        return [each["InstanceId"] for each in answer["Instances"]]

    def instance(self, number: str) -> dict[str, Any]:
        return dict(self.ec2.describe_instances(InstanceIds=[number])["Reservations"][0]["Instances"][0])


@pytest.fixture
def network(aws: StandIn) -> Network:
    del aws
    return Network()


def refused(code: str) -> Any:
    return pytest.raises(ClientError, match=rf"\({re.escape(code)}\)")


# -- additions to moto ------------------------------------------------------------------------------------------------


def test_images_are_found_by_their_public_names_and_have_a_root_device(network: Network) -> None:
    names = [each["Value"] for each in client("ssm").get_parameters(Names=[UBUNTU, DEEP_LEARNING])["Parameters"]]
    images = network.ec2.describe_images(ImageIds=names)["Images"]
    assert [each["RootDeviceName"] for each in images] == ["/dev/sda1"] * 2
    with refused("InvalidAMIID.NotFound"):
        network.launch(ImageId="ami-00000000000000000")


def test_an_operation_that_nobody_implements_is_a_400_and_names_itself(network: Network) -> None:
    with refused("InvalidAction") as caught:
        network.ec2.describe_instance_topology()
    assert "DescribeInstanceTopology" in str(caught.value)


def test_placement_groups_live_and_stay_while_an_instance_is_in_them(network: Network) -> None:
    ec2 = network.ec2
    tags = [{"ResourceType": "placement-group", "Tags": [{"Key": "owner", "Value": "me"}]}]
    ec2.create_placement_group(GroupName="close", Strategy="cluster", TagSpecifications=tags)
    with refused("InvalidPlacementGroup.Duplicate"):
        ec2.create_placement_group(GroupName="close", Strategy="cluster")
    found = ec2.describe_placement_groups(Filters=[{"Name": "tag:owner", "Values": ["me"]}])["PlacementGroups"]
    assert [(each["GroupName"], each["Strategy"], each["State"]) for each in found] == [
        ("close", "cluster", "available")
    ]
    with refused("InvalidPlacementGroup.Unknown"):
        network.launch(Placement={"GroupName": "far"})
    (number,) = network.launch(Placement={"GroupName": "close"})
    with refused("InvalidPlacementGroup.InUse"):
        ec2.delete_placement_group(GroupName="close")
    ec2.terminate_instances(InstanceIds=[number])
    ec2.delete_placement_group(GroupName="close")
    with refused("InvalidPlacementGroup.Unknown"):
        ec2.describe_placement_groups(GroupNames=["close"])


def test_all_interfaces_of_all_network_cards_are_shown(network: Network, aws: StandIn) -> None:
    common = {"SubnetId": network.subnet, "Groups": [network.group]}
    layout = [{"NetworkCardIndex": 0, "DeviceIndex": 0, **common}]
    layout += [
        {"NetworkCardIndex": card, "DeviceIndex": 0 if card else 1, "InterfaceType": "efa-only", **common}
        for card in range(32)
    ]
    (number,) = network.launch(InstanceType="p5.48xlarge", NetworkInterfaces=layout)
    shown = network.instance(number)["NetworkInterfaces"]
    places = {(each["Attachment"]["NetworkCardIndex"], each["Attachment"]["DeviceIndex"]) for each in shown}
    assert places == {(each["NetworkCardIndex"], each["DeviceIndex"]) for each in layout}
    assert {each["InterfaceType"]: "PrivateIpAddress" in each for each in shown} == {
        "interface": True,
        "efa-only": False,
    }
    network.ec2.terminate_instances(InstanceIds=[number])
    assert "network interface" not in aws.resources()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ([{"DeviceIndex": 0, "InterfaceType": "efa-only"}], "InvalidParameterCombination"),
        ([{"DeviceIndex": 0}, {"DeviceIndex": 1, "NetworkCardIndex": 1}], "InvalidParameterValue"),
        ([{"DeviceIndex": 0, "AssociatePublicIpAddress": True}, {"DeviceIndex": 1}], "InvalidParameterCombination"),
        ([{"DeviceIndex": 0}, {"DeviceIndex": 0}], "InvalidParameterValue"),
        ([{"DeviceIndex": 1}], "InvalidParameterValue"),
    ],
)
def test_interface_layouts_that_the_type_cannot_have_are_refused(
    network: Network, change: list[dict[str, Any]], code: str
) -> None:
    with refused(code):
        network.launch(NetworkInterfaces=[{"SubnetId": network.subnet, **each} for each in change])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"MetadataOptions": {"HttpTokens": "must"}}, "InvalidParameterValue"),
        ({"MetadataOptions": {"HttpPutResponseHopLimit": 65}}, "InvalidParameterValue"),
        ({"InstanceMarketOptions": {"MarketType": "capacity-block"}}, "InvalidParameterCombination"),
        (
            {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": {"InstanceInterruptionBehavior": "stop"}}},
            "InvalidParameterCombination",
        ),
        ({"KeyName": "nobody's"}, "InvalidKeyPair.NotFound"),
        ({"InstanceType": "g5.13xlarge"}, "InvalidParameterValue"),
        ({"UserData": "x" * 16385}, "InvalidParameterValue"),
        ({"SecurityGroupIds": ["sg-00000000"]}, "InvalidParameterCombination"),
    ],
)
def test_contradictory_launches_are_refused(network: Network, change: dict[str, Any], code: str) -> None:
    with refused(code):
        network.launch(**change)


def test_a_client_token_gives_the_same_instances_even_when_they_are_gone(network: Network) -> None:
    first = network.launch(ClientToken="once")
    assert network.launch(ClientToken="once") == first
    network.ec2.terminate_instances(InstanceIds=first)
    assert network.launch(ClientToken="once") == first
    with refused("IdempotentParameterMismatch"):
        network.launch(ClientToken="once", InstanceType="g5.xlarge")
    assert network.launch(ClientToken="twice") != first


def test_shutting_down_inside_follows_the_behaviour(network: Network, aws: StandIn) -> None:
    (ends,), (stops,) = network.launch(InstanceInitiatedShutdownBehavior="terminate"), network.launch()
    asked = network.ec2.describe_instance_attribute(InstanceId=ends, Attribute="instanceInitiatedShutdownBehavior")
    assert asked["InstanceInitiatedShutdownBehavior"] == {"Value": "terminate"}
    assert (aws.guest_shutdown(ends), aws.guest_shutdown(stops)) == ("terminated", "stopped")
    assert network.instance(ends)["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"


def test_reservations_and_blocks_hold_machines_for_those_who_name_them(network: Network, aws: StandIn) -> None:
    ec2 = network.ec2
    aws.offer_block("cb-1", instance_type="p5.48xlarge", count=1, zone="us-east-1b", hours=24)
    (offer,) = ec2.describe_capacity_block_offerings(InstanceType="p5.48xlarge", CapacityDurationHours=24)[
        "CapacityBlockOfferings"
    ]
    bought = ec2.purchase_capacity_block(
        CapacityBlockOfferingId=offer["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
    )["CapacityReservation"]["CapacityReservationId"]
    (shown,) = ec2.describe_capacity_reservations(CapacityReservationIds=[bought])["CapacityReservations"]
    assert (shown["ReservationType"], shown["AvailableInstanceCount"]) == ("capacity-block", 1)
    target = {"CapacityReservationTarget": {"CapacityReservationId": bought}}
    into = {"CapacityReservationSpecification": target, "InstanceMarketOptions": {"MarketType": "capacity-block"}}
    with refused("InvalidParameterValue"):
        network.launch(**into)
    aws.quota("L-417A185B", 0)  # blocks don't count
    (number,) = network.launch(InstanceType="p5.48xlarge", **into)
    assert network.instance(number)["CapacityReservationId"] == bought
    with refused("ReservationCapacityExceeded"):
        network.launch(InstanceType="p5.48xlarge", **into)
    with refused("OperationNotPermitted"):
        ec2.cancel_capacity_reservation(CapacityReservationId=bought)


def test_prices_are_those_that_the_test_set(aws: StandIn) -> None:
    aws.price("p5.48xlarge", 55.04)
    aws.spot_price("p5.48xlarge", 20.5, zone="us-east-1b")
    wanted = [{"Type": "TERM_MATCH", "Field": "instanceType", "Value": "p5.48xlarge"}]
    assert "55.04" in client("pricing").get_products(ServiceCode="AmazonEC2", Filters=wanted)["PriceList"][0]
    (spot,) = client().describe_spot_price_history(InstanceTypes=["p5.48xlarge"])["SpotPriceHistory"]
    assert float(spot["SpotPrice"]) == 20.5


# -- rules of AWS's ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tags",
    [
        {f"k{i}": "v" for i in range(51)},
        {"k" * 129: "v"},
        {"k": "v" * 257},
        {"aws:k": "v"},
    ],
    ids=["51 tags", "long key", "long value", "aws:"],
)
def test_tags_over_the_limits_are_refused(network: Network, tags: dict[str, str]) -> None:
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    with refused("TagLimitExceeded" if len(tags) > 50 else "InvalidParameterValue"):
        network.launch(TagSpecifications=[{"ResourceType": "instance", "Tags": pairs}])
    with pytest.raises(ClientError):
        client("iam").create_role(RoleName="r", AssumeRolePolicyDocument="{}", Tags=pairs)


def test_names_over_the_limits_are_refused_with_the_service_s_own_code(network: Network) -> None:
    ec2 = network.ec2
    with refused("InvalidParameterValue"):
        ec2.create_security_group(VpcId=network.vpc, GroupName="g" * 256, Description="-")
    with refused("InvalidParameterValue"):
        ec2.create_security_group(VpcId=network.vpc, GroupName="Doé", Description="-")
    with refused("InvalidParameterValue"):
        ec2.create_placement_group(GroupName="p" * 256, Strategy="cluster")
    with refused("ValidationError"):
        client("iam").create_role(RoleName="r" * 65, AssumeRolePolicyDocument="{}")
    with refused("InvalidBucketName"):
        client("s3").create_bucket(Bucket="Stack_Bucket")


def test_what_is_in_use_cannot_be_deleted_until_it_is_free(network: Network, aws: StandIn) -> None:
    ec2 = network.ec2
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=network.vpc)
    address = ec2.allocate_address(Domain="vpc")["AllocationId"]
    nat = ec2.create_nat_gateway(SubnetId=network.subnet, AllocationId=address)["NatGateway"]["NatGatewayId"]
    (number,) = network.launch()
    in_the_way = {
        "DependencyViolation": [
            lambda: ec2.delete_vpc(VpcId=network.vpc),
            lambda: ec2.delete_subnet(SubnetId=network.subnet),
            lambda: ec2.delete_security_group(GroupId=network.group),
            lambda: ec2.detach_internet_gateway(InternetGatewayId=gateway, VpcId=network.vpc),
        ],
        "InvalidIPAddress.InUse": [lambda: ec2.release_address(AllocationId=address)],
    }
    for code, deletions in in_the_way.items():
        for each in deletions:
            with refused(code):
                each()
    ec2.terminate_instances(InstanceIds=[number])
    ec2.delete_nat_gateway(NatGatewayId=nat)
    ec2.release_address(AllocationId=address)
    ec2.detach_internet_gateway(InternetGatewayId=gateway, VpcId=network.vpc)
    with refused("DependencyViolation"):
        ec2.delete_vpc(VpcId=network.vpc)
    ec2.delete_internet_gateway(InternetGatewayId=gateway)
    ec2.delete_subnet(SubnetId=network.subnet)
    ec2.delete_security_group(GroupId=network.group)
    ec2.delete_vpc(VpcId=network.vpc)
    assert aws.resources() == {}


# -- faults -----------------------------------------------------------------------------------------------------------


def test_capacity_ends_and_comes_back_with_terminated_machines(network: Network, aws: StandIn) -> None:
    aws.capacity(zone="us-east-1b", instance_type="g5.12xlarge", machines=2)
    first = network.launch(MaxCount=3)
    assert len(first) == 2
    with refused("InsufficientInstanceCapacity") as caught:
        network.launch()
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500
    network.ec2.terminate_instances(InstanceIds=first[:1])
    assert len(network.launch()) == 1


def test_quotas_are_told_and_enforced(network: Network, aws: StandIn) -> None:
    aws.quota("L-DB2E81BA", 48)
    aws.quota("L-3819A6DF", 0)
    quotas = client("service-quotas")
    assert quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-DB2E81BA")["Quota"]["Value"] == 48
    assert "L-1216C47A" in {each["QuotaCode"] for each in quotas.list_service_quotas(ServiceCode="ec2")["Quotas"]}
    network.launch()
    with refused("VcpuLimitExceeded") as caught:
        network.launch()
    assert "limit of 48" in str(caught.value)
    with refused("MaxSpotInstanceCountExceeded"):
        network.launch(InstanceMarketOptions={"MarketType": "spot"})


def test_a_type_is_offered_only_where_the_test_says(network: Network, aws: StandIn) -> None:
    aws.offer_only_in("g5.12xlarge", ["us-east-1a"])
    by_type = [{"Name": "instance-type", "Values": ["g5.12xlarge"]}]
    offered = network.ec2.describe_instance_type_offerings(LocationType="availability-zone", Filters=by_type)
    assert [each["Location"] for each in offered["InstanceTypeOfferings"]] == ["us-east-1a"]
    with refused("Unsupported"):
        network.launch()


def test_throttling_and_server_errors_end_after_as_many_calls(aws: StandIn) -> None:
    aws.throttle("DescribeVpcs", 1)
    aws.server_error("DescribeSubnets", 1)
    client(attempts=2).describe_vpcs()
    with refused("InternalError"):
        client().describe_subnets()
    client().describe_subnets()
    assert [call["outcome"] for call in aws.operations("DescribeVpcs")] == ["RequestLimitExceeded", "200"]


@pytest.mark.parametrize("code", ["ExpiredToken", "RequestExpired"])
def test_credentials_expire_after_as_many_calls(aws: StandIn, code: str) -> None:
    aws.expire_credentials(after_calls=1, code=code)
    client("sts").get_caller_identity()
    for service, call in (("sts", "get_caller_identity"), ("ec2", "describe_vpcs"), ("ssm", "describe_parameters")):
        with refused(code):
            getattr(client(service), call)()


def test_what_was_just_created_is_invisible_for_as_many_describes(network: Network, aws: StandIn) -> None:
    aws.hide_after("RunInstances", describes=2)
    (number,) = network.launch()
    with refused("InvalidInstanceID.NotFound"):
        network.instance(number)
    assert network.ec2.describe_instances()["Reservations"] == []
    assert network.instance(number)["State"]["Name"] == "running"


def test_instances_end_slowly_and_hold_their_group_meanwhile(network: Network, aws: StandIn) -> None:
    aws.terminate_slowly(describes=2)
    (number,) = network.launch()
    network.ec2.terminate_instances(InstanceIds=[number])
    with refused("DependencyViolation"):
        network.ec2.delete_security_group(GroupId=network.group)
    states = [network.instance(number)["State"]["Name"] for _ in range(3)]
    assert states == ["shutting-down", "shutting-down", "terminated"]
    network.ec2.delete_security_group(GroupId=network.group)


@pytest.mark.parametrize("reason", ["Server.InsufficientInstanceCapacity", "Client.VolumeLimitExceeded"])
def test_an_instance_can_end_at_once_with_a_reason(network: Network, aws: StandIn, reason: str) -> None:
    aws.launch_stillborn(reason)
    (number,) = network.launch()
    instance = network.instance(number)
    assert (instance["State"]["Name"], instance["StateReason"]["Code"]) == ("terminated", reason)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_call_hangs_before_or_after_it_is_executed(aws: StandIn, when: Any) -> None:
    aws.hang("CreateVpc", when=when)
    caller = threading.Thread(target=lambda: client().create_vpc(CidrBlock="10.0.0.0/16"))
    caller.start()
    aws.wait_until_hanging("CreateVpc")
    assert ("vpc" in aws.resources()) == (when == "after")
    assert aws.release() == 1
    caller.join(timeout=30)
    assert "vpc" in aws.resources()
    with pytest.raises(StandInError, match="no call of CreateVpc hung"):
        aws.wait_until_hanging("CreateVpc", timeout_s=0)


def test_a_fault_that_does_not_exist_is_refused(aws: StandIn) -> None:
    with pytest.raises(StandInError, match="L-12345678"):
        aws.quota("L-12345678", 1)
