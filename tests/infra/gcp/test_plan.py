"""What a stack file comes to on GCP, and every key that can be wrong."""

from __future__ import annotations

import pytest

from infra.errors import SpecError
from infra.providers.gcp import plan
from tests.infra.gcp.asking import asked


def test_region_from_the_zones() -> None:
    assert plan.plan(asked(region=None, zones=["us-east4-b", "us-east4-a"])).region == "us-east4"


def test_gpus_take_the_smallest_machine_that_is_sold_so() -> None:
    assert plan.plan(asked(instance=None, gpus="H100:8")).machine.name == "a3-highgpu-8g"
    assert plan.plan(asked(instance=None, gpus="L4:1")).machine.name == "g2-standard-4"
    assert plan.plan(asked(instance=None, gpus="h200:8", market="spot")).machine.name == "a3-ultragpu-8g"


@pytest.mark.parametrize(
    ("keys", "provisioning"),
    [
        ({}, "STANDARD"),
        ({"market": "spot"}, "SPOT"),
        ({"market": "flex-start"}, "FLEX_START"),
        ({"reservation": "ours"}, "STANDARD"),
        ({"reservation": "ours", "instance": "a4-highgpu-8g"}, "RESERVATION_BOUND"),
    ],
)
def test_how_a_machine_is_provisioned(keys: dict[str, str], provisioning: str) -> None:
    assert plan.plan(asked(**keys)).provisioning == provisioning


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"region": None}, "region is missing"),
        ({"region": "us-central1-a"}, "which is no region"),
        ({"zones": ["us-central1"]}, "which is no zone"),
        ({"zones": ["us-east4-a"]}, "us-central1 and us-east4"),
        ({"gpus": "L4:1"}, "^gpus or instance: both are there: write one of the two"),
        ({"instance": None}, "^gpus or instance: neither is there"),
        ({"instance": "p5.48xlarge"}, "^instance: machine type 'p5.48xlarge' isn't in the table of GCP"),
        ({"instance": None, "gpus": "L4:9"}, "^gpus: no machine type of GCP has GPUs L4:9"),
        ({"nodes": 65}, "at most 64"),
        ({"disk_gib": 10}, "disk_gib is 10"),
        ({"processes_per_node": 2}, "has 1 GPU"),
        ({"image": "AMI 1"}, "image is 'AMI 1'"),
        ({"instance": "a3-highgpu-1g"}, "isn't sold so: take spot or flex-start"),
        ({"instance": "a4-highgpu-8g"}, "isn't sold so"),
        ({"reservation": "ours", "market": "spot"}, "beside a reservation"),
        ({"market": "flex-start", "max_lifetime": "8d"}, "10m to 7d"),
        ({"market": "flex-start", "max_lifetime": "5m"}, "10m to 7d"),
        ({"storage": {"kind": "lustre", "size_gib": 18000}}, "take nfs"),
        ({"storage": {"kind": "bucket", "size_gib": 10}}, "bills what is used"),
        ({"storage": {"kind": "nfs"}}, "steps of 256"),
        ({"storage": {"kind": "nfs", "size_gib": 1000}}, "steps of 256"),
        ({"ssh_from": ["2001:db8::/64"]}, "IPv4 only"),
    ],
)
def test_what_is_wrong_is_said_with_its_key(keys: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        plan.plan(asked(**keys))


def test_everything_wrong_is_said_at_once() -> None:
    with pytest.raises(SpecError) as error:
        plan.plan(asked(region="mars", instance="a4-highgpu-8g", nodes=100, disk_gib=1))
    assert len(str(error.value).splitlines()) == 4


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("mine", ("p", "mine", False)),
        ("family/mine", ("p", "mine", True)),
        ("projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64", None),
        ("projects/ubuntu-os-cloud/global/images/ubuntu-1", ("ubuntu-os-cloud", "ubuntu-1", False)),
    ],
)
def test_images(written: str, found: tuple[str, str, bool] | None) -> None:
    found = found or ("ubuntu-os-cloud", "ubuntu-2404-lts-amd64", True)
    assert plan.image_of(written, project="p") == found
