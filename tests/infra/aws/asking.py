"""What tests ask of the provider `aws`: stack files, deployments, orders, and a network on the stand-in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import boto3

from infra.gang import Order
from infra.providers.aws import PROVIDER, api, network
from infra.providers.aws.machines import AwsMachines
from infra.providers.base import Deployment
from infra.spec import ClusterSpec, parse
from tests.infra import ordering
from tests.infra.declaring import Cloud, Made
from tests.stand_ins.aws.client import StandIn

HEAD_ADDRESS = "198.51.100.9"
FILE = "stacks/Pulumi.aws.yaml"
IMAGE = "ami-0d1a0000000022040"
PINNED = {"image": IMAGE, "root_device": "/dev/sda1", "root_gib": 8}


def deployment(root: object, stack: str = "aws") -> Deployment:
    return Deployment(root=Path(str(root)), stack=stack)


def asked(**keys: Any) -> ClusterSpec:
    """Two p5.48xlarge in us-east-1 unless said otherwise; None takes a key away."""
    usual = {"provider": "aws", "region": "us-east-1", "gpus": "H100:8", "ssh_from": ["203.0.113.7"]}
    if keys.get("instance"):
        usual.pop("gpus")
    return parse({key: value for key, value in {**usual, **keys}.items() if value is not None}, file=FILE)


def ec2(region: str = "us-east-1") -> Any:
    return boto3.client("ec2", region_name=region)


def tag_list(mine: Deployment, **others: str) -> list[dict[str, str]]:
    tags = {api.IDENTITY_TAG: mine.identity, api.OWNER_TAG: mine.owner, **others}
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def tagged(kind: str, mine: Deployment) -> list[dict[str, Any]]:
    """`TagSpecifications` of one kind."""
    return [{"ResourceType": kind, "Tags": tag_list(mine)}]


def order(name: str = "node-0", *, zone: str = "us-east-1a", **changes: Any) -> Order:
    return ordering.order(name, zone=zone, **changes)


class Place:
    """What Pulumi would have made in one region before the gang: subnets, group and placement group of each zone."""

    def __init__(self, mine: Deployment, *, region: str = "us-east-1", letters: str = "ab") -> None:
        self.mine, self.region = mine, region
        self.ec2 = ec2(region)
        self.vpc = self.ec2.create_vpc(CidrBlock=str(network.VPC), TagSpecifications=tagged("vpc", mine))
        self.vpc = self.vpc["Vpc"]["VpcId"]
        specification = tagged("security-group", mine)
        self.group = self.ec2.create_security_group(
            VpcId=self.vpc, GroupName="members", Description="-", TagSpecifications=specification
        )["GroupId"]
        self.places = {f"{region}{letter}": self._zone(f"{region}{letter}") for letter in letters}

    def _zone(self, zone: str) -> dict[str, str]:
        name = f"trainstack-{self.mine.digest}-{zone}"
        specification = tagged("placement-group", self.mine)
        self.ec2.create_placement_group(GroupName=name, Strategy="cluster", TagSpecifications=specification)
        public, private = (self._subnet(zone, block) for block in network.blocks(zone))
        return {"public_subnet": public, "private_subnet": private, "placement_group": name}

    def _subnet(self, zone: str, block: str) -> str:
        answer = self.ec2.create_subnet(
            VpcId=self.vpc, CidrBlock=block, AvailabilityZone=zone, TagSpecifications=tagged("subnet", self.mine)
        )
        return str(answer["Subnet"]["SubnetId"])

    def wish(self, **changes: Any) -> dict[str, Any]:
        """As resources.py writes it."""
        return {
            "region": self.region,
            "instance": "g5.xlarge",
            "market": "on-demand",
            "image": "deep-learning",
            "disk_gib": 200,
            "reservation": "",
            "reservation_kind": "",
            "security_group": self.group,
            "instance_profile": "",
            **changes,
        }

    def machines(self, *, pinned: Mapping[str, Any] = PINNED, clock: Any = None, **changes: Any) -> AwsMachines:
        """Without waiting: its pauses take no time."""
        given = {} if clock is None else {"clock": clock}
        return AwsMachines(
            self.mine,
            wish=self.wish(**changes),
            places=self.places,
            pinned=pinned,
            sleep=lambda _: None,
            **given,
        )

    def instance(self, id_: str) -> dict[str, Any]:
        return dict(self.ec2.describe_instances(InstanceIds=[id_])["Reservations"][0]["Instances"][0])

    def interfaces(self, id_: str) -> list[dict[str, Any]]:
        wanted = [{"Name": "attachment.instance-id", "Values": [id_]}]
        return list(self.ec2.describe_network_interfaces(Filters=wanted)["NetworkInterfaces"])


def listed(mine: Deployment) -> dict[str, list[str]]:
    """What the provider's `leftovers` tells: kind -> ids, in order."""
    found: dict[str, list[str]] = {}
    for each in PROVIDER.leftovers(mine):
        found.setdefault(each.kind, []).append(each.id.partition("/")[2])
    return {kind: sorted(ids) for kind, ids in found.items()}


# The stand-in's kinds that `leftovers` calls otherwise, or that go with another kind.
_CALLED = {
    "vpc": "network (VPC)",
    "nat gateway": "NAT gateway",
    "vpc endpoint": "endpoint",
    "efs file system": "file system (EFS)",
    "fsx file system": "file system (Lustre)",
}
_WITH_ANOTHER = {"efs mount target", "instance profile"}


def existing(aws: StandIn) -> dict[str, list[str]]:
    """What the stand-in has in us-east-1, in the words of `listed`; without what goes with its owner."""
    found = {_CALLED.get(kind, kind): sorted(ids) for kind, ids in aws.resources().items() if kind not in _WITH_ANOTHER}
    interfaces = sorted(set(found.pop("network interface", [])) - _of_aws_itself(found))
    return found | ({"network interface": interfaces} if interfaces else {})


def _of_aws_itself(found: Mapping[str, list[str]]) -> set[str]:
    """The interfaces of NAT gateways and mount targets: AWS made them, without a tag, and takes them away."""
    interfaces = set()
    if "NAT gateway" in found:
        for gateway in ec2().describe_nat_gateways()["NatGateways"]:
            interfaces |= {address["NetworkInterfaceId"] for address in gateway["NatGatewayAddresses"]}
    efs = boto3.client("efs", region_name="us-east-1")
    for file_system in found.get("file system (EFS)", []):
        targets = efs.describe_mount_targets(FileSystemId=file_system)["MountTargets"]
        interfaces |= {target["NetworkInterfaceId"] for target in targets}
    return interfaces


def aws_cloud() -> Cloud:
    """For tests of what is declared."""
    return Cloud(machine=_machine, outputs=_outputs)


def _machine(rank: int) -> dict[str, Any]:
    return {
        "id": f"i-{rank}",
        "private_address": f"10.77.64.{rank + 4}",
        "public_address": "",
        "facts": {"interface": f"eni-{rank}"},
    }


def _outputs(kind: str, made: Made) -> dict[str, Any]:
    known: dict[str, dict[str, Any]] = {
        "Eip": {"publicIp": HEAD_ADDRESS, "allocationId": f"eipalloc-{made.name}"},
        "PlacementGroup": {"name": f"{made.name}-made-up"},
        "Bucket": {"arn": f"arn:aws:s3:::{made.inputs.get('bucket')}"},
        "LustreFileSystem": {"dnsName": "fs-1.fsx.us-east-1.amazonaws.com", "mountName": "abc"},
        "MountTarget": {"ipAddress": "10.77.64.99"},
        # What AWS names by an ARN, others of our resources take.
        "FileSystem": {"arn": "arn:aws:elasticfilesystem:us-east-1:123456789012:file-system/fs-1"},
    }
    return known.get(kind, {})
