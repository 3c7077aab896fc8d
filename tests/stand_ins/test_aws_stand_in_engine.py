"""The stand-in's plug-in under the real engine: the unmodified pulumi_aws from nothing to a stack and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.pulumi_engine import environment
from tests.stand_ins import schema
from tests.stand_ins.aws.client import StandIn
from tests.stand_ins.aws.fixtures import aws, aws_plugin, aws_server, engine_environment
from tests.stand_ins.aws.plugin import KINDS
from tests.stand_ins.on_path import ROOT
from tests.stand_ins.projects import Project

__all__ = ["aws", "aws_plugin", "aws_server"]

# The SDK warns of its own deprecated modules when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMgT5EOIQ2IXcsjvW2HFEpkduqLRsDBo8NRxU4/jfCxO me"


def project_of(folder: Path, aws: StandIn, plugin: Path, program: str) -> Project:
    return Project(folder / "project", engine_environment(aws, plugin, environment(ROOT)), program)


@pytest.mark.end_to_end
def test_a_stack_of_the_real_sdk_lives_changes_and_goes(aws: StandIn, aws_plugin: Path, tmp_path: Path) -> None:
    program = (ROOT / "tests/stand_ins/aws/example_program.py").read_text()
    project = project_of(tmp_path, aws, aws_plugin, program)
    project.pulumi("config", "set", "key", KEY)

    aws.hide_after("CreateSecurityGroup", describes=2)  # the provider waits until it sees what it made
    up = project.pulumi("up", "--yes")
    assert "35 to create" in up
    assert "35 created" in up
    made = aws.resources()
    assert len(made["vpc"]) == 2
    assert set(made) >= {"nat gateway", "placement group", "vpc endpoint", "bucket", "role", "instance"}
    assert {call["region"] for call in aws.operations("CreateVpc")} == {"us-east-1", "us-west-2"}
    assert project.pulumi("stack", "output", "vpc").strip() in made["vpc"]
    calls = len(aws.operations("CreateVpc"))
    project.pulumi("up", "--yes", "--skip-preview", "--refresh", "--expect-no-changes")
    assert len(aws.operations("CreateVpc")) == calls

    aws.dependency_violation("DeleteSubnet", times=3)
    aws.dependency_violation("DeleteVpc", times=1000)
    failed = project.pulumi("destroy", "--yes", "--skip-preview", code=1)
    assert "DependencyViolation" in failed
    assert set(aws.resources()) == {"vpc"}
    outcomes = [call["outcome"] for call in aws.operations("DeleteSubnet")]
    assert outcomes.count("DependencyViolation") >= 3
    assert outcomes.count("200") == 2

    aws.clear_faults()
    project.pulumi("destroy", "--yes", "--skip-preview")
    assert aws.resources() == {}


@pytest.mark.end_to_end
def test_a_wrong_type_is_refused_by_the_engine_before_anything_is_made(
    aws: StandIn, aws_plugin: Path, tmp_path: Path
) -> None:
    program = "import pulumi_aws as aws\naws.ec2.Vpc('wrong', cidr_block=17)\n"
    project = project_of(tmp_path, aws, aws_plugin, program)
    assert "expected str" in project.pulumi("up", "--yes", "--skip-preview", code=1)
    assert not aws.operations("CreateVpc")


@pytest.mark.parametrize(
    ("token", "inputs", "where"),
    [
        ("aws:ec2/vpc:Vpc", {"cidrBlock": "10.0.0.0/16", "cidr": "x"}, "cidr"),
        ("aws:ec2/subnet:Subnet", {"cidrBlock": "10.0.0.0/24"}, "vpcId"),
        ("aws:ec2/launchTemplate:LaunchTemplate", {"placement": {"group": "typo"}}, "placement.group"),
        ("aws:ec2/instance:Instance", {"rootBlockDevice": {"volumeSize": "20"}}, "rootBlockDevice.volumeSize"),
        ("aws:ec2/vpc:Vpc", {"tags": {"a": 1}}, "tags['a']"),
    ],
)
def test_inputs_that_the_sdk_does_not_know_are_refused(token: str, inputs: dict[str, object], where: str) -> None:
    assert [path for path, _ in schema.failures(token, inputs)] == [where]


def test_unknown_values_of_a_preview_pass() -> None:
    unknown = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
    inputs = {"vpcId": unknown, "tags": unknown, "mapPublicIpOnLaunch": unknown}
    assert schema.failures("aws:ec2/subnet:Subnet", inputs) == []


def test_every_type_and_every_input_that_the_plugin_names_is_the_sdk_s() -> None:
    for token, kind in KINDS.items():
        named = {*kind.replace, *kind.updates, *kind.state_only} | ({kind.auto_name} if kind.auto_name else set())
        assert named <= schema.of(token).inputs, token
