"""From the stack file to AWS's words: what is chosen, what is refused and how that reads, and names within limits."""

from __future__ import annotations

import dataclasses
import ipaddress
import itertools
import re
import string
from pathlib import Path
from typing import Any

import pytest

from infra import ssh_keys
from infra.cluster import node_names
from infra.errors import SpecError
from infra.first_boot import FirstBoot
from infra.providers.aws import instances, machines, network, plan, preflight, storage
from infra.providers.base import Deployment
from infra.user_data import cloud_config
from tests.infra.aws.asking import PINNED, asked, deployment, order
from tests.infra.ordering import NOW

LONGEST_ZONE = "ap-northeast-1-tpe-1a"
KEYS = "|".join(plan.KEYS)


def refusal(**keys: Any) -> list[str]:
    """The sentences; each begins with its key and, after a colon or a comma, goes on to what to do."""
    with pytest.raises(SpecError) as caught:
        plan.plan(asked(**keys))
    lines = str(caught.value).splitlines()
    for line in lines:
        assert re.match(rf"({KEYS})\b", line), line
        assert re.search(r"[:,] \S", line), line
    return lines


def test_gpus_or_an_instance_lead_to_a_machine_type() -> None:
    assert plan.plan(asked(gpus="H100:8")).instance.name == "p5.48xlarge"
    assert plan.plan(asked(gpus="h100:1")).instance.name == "p5.4xlarge"
    assert plan.plan(asked(gpus="A10G:1")).instance.name == "g5.xlarge"
    assert plan.plan(asked(instance="g6e.48xlarge")).instance.gpu_model == "L40S"


@pytest.mark.parametrize(("keys"), [{"gpus": None}, {"gpus": "H100:8", "instance": "p5.48xlarge"}])
def test_neither_or_both_are_refused(keys: dict[str, Any]) -> None:
    spec = asked(**{**keys, "instance": None}).model_copy(update=keys)
    with pytest.raises(SpecError, match=r"^gpus or instance: (neither is|both are) there: write one of the two"):
        plan.plan(spec)


def test_an_unknown_machine_gives_the_nearest_names() -> None:
    (line,) = refusal(instance="p5.48xlarg")
    assert line.startswith("instance: machine type 'p5.48xlarg' isn't in the table of AWS")
    assert "p5.48xlarge" in line
    (line,) = refusal(gpus="H100:3")
    assert line.startswith("gpus: no machine type of AWS has GPUs H100:3")
    assert "H100: 1, 8" in line
    (line,) = refusal(gpus="eight H100")
    assert line.startswith("gpus: ")
    assert "H100:8" in line


def test_the_region_is_said_or_that_of_the_zones() -> None:
    assert plan.plan(asked(region="eu-west-1")).region == "eu-west-1"
    chosen = plan.plan(asked(region=None, zones=["us-west-2c", "us-west-2a"]))
    assert (chosen.region, chosen.zones) == ("us-west-2", ("us-west-2c", "us-west-2a"))
    assert plan.plan(asked(region=None, zones=["us-gov-west-1a"])).region == "us-gov-west-1"
    assert plan.plan(asked(region="us-east-1")).zones is None


def test_a_region_that_is_missing_or_contradicted_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert refusal(region=None) == ["region is missing: write one, as us-east-1"]
    (line,) = refusal(region=None, zones=["us-east-1a", "us-west-2a"])
    assert line.startswith("zones and region name us-east-1 and us-west-2: ")
    (line,) = refusal(region="eu-west-1", zones=["us-east-1a"])
    assert "eu-west-1 and us-east-1" in line
    (line,) = refusal(region=None, zones=["us-east-1"])
    assert line == "zones has 'us-east-1', which is no availability zone: write them as us-east-1a"


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"region": "us-east"}, r"^region is 'us-east', which is no region: write it as us-east-1$"),
        ({"region": "us-east-1a"}, r"^region is 'us-east-1a', which is no region: write it as us-east-1$"),
        ({"disk_gib": 16385}, r"^disk_gib is 16385: gp3 has at most 16384$"),
        ({"nodes": 65}, r"^nodes is 65: a gang on AWS has at most 64$"),
        ({"market": "flex-start"}, r"^market is 'flex-start', which AWS hasn't: take on-demand or spot"),
        ({"reservation": "mine"}, r"^reservation is 'mine': .* cr-0123456789abcdef0$"),
        ({"reservation": "cr-0123456789abcdef0", "market": "spot"}, r"^market is 'spot' beside a reservation: remove"),
        ({"processes_per_node": 9}, r"^processes_per_node is 9, and p5.48xlarge has 8 GPU\(s\): remove the key"),
        ({"image": "ubuntu"}, r"^image is 'ubuntu': take one of deep-learning, .*ubuntu-22.04.*ami-0123456789abcdef0"),
        ({"storage": {"kind": "lustre"}}, r"^storage.size_gib is missing: FSx for Lustre comes as 1200, or in steps"),
        ({"storage": {"kind": "lustre", "size_gib": 1300}}, r"^storage.size_gib is 1300: "),
        (
            {"storage": {"kind": "nfs", "size_gib": 100}},
            r"^storage.size_gib is 100, and EFS bills what is used: remove",
        ),
        ({"storage": {"kind": "bucket", "size_gib": 1}}, r"^storage.size_gib is 1, and S3 bills what is used: remove"),
        (
            {"region": None, "zones": ["us-east-1a", "us-east-1-bos-1a"]},
            r"^zones has two that end in one letter .*: leave",
        ),
    ],
)
def test_what_aws_has_not_is_refused_with_its_key(keys: dict[str, Any], told: str) -> None:
    (line,) = refusal(**keys)
    assert re.search(told, line), line


def test_a_machine_that_is_not_sold_as_spot_is_not_asked_for_as_spot(monkeypatch: pytest.MonkeyPatch) -> None:
    only_on_demand = dataclasses.replace(instances.by_name("p5.48xlarge"), spot=False)
    monkeypatch.setattr(instances, "all_types", lambda: {only_on_demand.name: only_on_demand})
    (line,) = refusal(instance="p5.48xlarge", market="spot")
    assert line == "market is 'spot', and p5.48xlarge isn't sold as spot: take on-demand or a reservation"


@pytest.mark.parametrize("size", [1200, 2400, 4800])
def test_the_sizes_that_lustre_comes_in_pass(size: int) -> None:
    plan.plan(asked(storage={"kind": "lustre", "size_gib": size}))


@pytest.mark.parametrize("image", ["ami-0123456789abcdef0", "/aws/service/mine/ami-id", *plan.IMAGES, None])
def test_images_by_name_id_or_parameter_pass(image: str | None) -> None:
    plan.plan(asked(image=image))


def test_everything_that_is_wrong_is_told_at_once() -> None:
    lines = refusal(region=None, gpus="H100:3", nodes=99, image="x", storage={"kind": "nfs", "size_gib": 1})
    assert [re.split(r"[ :]", line)[0] for line in lines] == ["region", "gpus", "nodes", "image", "storage.size_gib"]


def test_preflight_puts_file_and_whole_key_before_each(mine: Deployment) -> None:
    told = preflight.problems(asked(region=None, gpus="H100:3"), mine)
    assert [line.partition(" is ")[0].partition(": ")[0] for line in told] == [
        "stacks/Pulumi.aws.yaml, key trainstack:cluster.region",
        "stacks/Pulumi.aws.yaml, key trainstack:cluster.gpus",
    ]


def test_no_two_address_blocks_of_a_region_s_zones_overlap() -> None:
    blocks = [
        ipaddress.ip_network(block)
        for letter in string.ascii_lowercase
        for block in network.blocks(f"us-east-1{letter}")
    ]
    assert all(block.subnet_of(network.VPC) for block in blocks)  # type: ignore[arg-type]
    assert not [pair for pair in itertools.combinations(blocks, 2) if pair[0].overlaps(pair[1])]
    # Room for the largest gang, AWS's five of each subnet off.
    assert min(block.num_addresses for block in blocks[1::2]) - 5 >= plan.MAX_NODES


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 63, 64, 128])
def test_names_and_tags_fit_aws_s_limits_with_the_longest_ending(root: Path, length: int) -> None:
    mine = deployment(root, "x" * length)
    group = f"trainstack-{mine.digest}-{LONGEST_ZONE}-1234567"  # with what Pulumi adds
    bucket = storage.name(mine)
    assert len(group) <= 255
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]", bucket)
    assert len(bucket) <= 64
    last = node_names(plan.MAX_NODES)[-1]
    made = machines.AwsMachines(
        mine,
        wish={
            "region": "us-east-1",
            "instance": "p5.48xlarge",
            "market": "spot",
            "disk_gib": 200,
            "security_group": "",
        },
        places={"us-east-1a": {"public_subnet": "a", "private_subnet": "b", "placement_group": group}},
        pinned=PINNED,
    ).request(order(last))
    for specification in made["TagSpecifications"]:
        for tag in specification["Tags"]:
            assert len(tag["Key"]) <= 128
            assert len(tag["Value"]) <= 256
            assert re.fullmatch(r"[\w\s.:/=+\-@]*", tag["Value"], re.ASCII)
    assert len(made["ClientToken"]) <= 64


def test_two_long_names_stay_different(root: Path) -> None:
    names = [deployment(root, "x" * 127 + last) for last in "ab"]
    assert names[0].digest != names[1].digest
    assert names[0].identity != names[1].identity


def test_one_name_in_two_checkouts_gives_two_buckets_and_groups(tmp_path: Path) -> None:
    for each in "ab":
        (tmp_path / each).mkdir()
    one, other = (deployment(tmp_path / each) for each in "ab")
    assert one.identity == other.identity
    assert one.digest != other.digest
    assert one.owner != other.owner


def test_user_data_of_the_longest_names_is_well_within_16_kib(root: Path) -> None:
    mine = deployment(root, "x" * 128)
    public = ssh_keys.make_pair(root / "key", comment=mine.identity)
    boot = FirstBoot(
        name=node_names(plan.MAX_NODES)[-1],
        host_key=(root / "key").read_text(),
        host_public_key=public,
        authorized_key=public,
        expires_at=NOW,
        lifetime_s=30 * 86400,
    )
    assert len(cloud_config(boot).encode()) < 16 * 1024 / 2


def test_an_identity_longer_than_a_tag_is_refused_by_preflight(root: Path) -> None:
    told = preflight.problems(asked(), deployment(root, "x" * 257))
    assert len(told) == 1
    assert "longer than AWS's 256: take a shorter stack name" in told[0]
