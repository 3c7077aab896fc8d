"""The unmodified program on the real engine and the real SDKs, AWS being the stand-in: up, faults, kills, destroy."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from infra.destroy import release_lock
from infra.providers.base import Deployment
from tests.bootstrap.servers import wait_until
from tests.infra.aws.asking import ec2, existing, listed
from tests.infra.checkouts import Checkout
from tests.stand_ins.aws.client import StandIn
from tests.stand_ins.aws.fixtures import engine_environment

pytestmark = pytest.mark.end_to_end

ZONES = ["us-east-1a", "us-east-1b"]
BILLING = {"instance", "volume", "nat gateway", "address", "bucket", "efs file system", "fsx file system"}
CANARY = "canary-of-the-users-own-key"


class Stack(Checkout):
    """One stack in a checkout of its own; keeps all that was said."""

    def __init__(self, path: Path, variables: dict[str, str]) -> None:
        self.said = ""
        super().__init__(path, {**variables, "AWS_SECRET_ACCESS_KEY": CANARY})

    @property
    def mine(self) -> Deployment:
        return Deployment(root=self.path, stack="aws")

    def ask(self, **keys: Any) -> None:
        usual = {"provider": "aws", "zones": ZONES, "instance": "g5.xlarge", "ssh_from": ["203.0.113.7"]}
        self.cluster("aws", **{**usual, "nodes": 2, "max_lifetime": "2h", **keys})

    def killed_up(self, aws: StandIn, operation: str, when: Literal["before", "after"], nth: int = 1) -> None:
        """`pulumi up`, killed while its nth call of `operation` isn't executed yet, or isn't answered yet."""
        aws.hang(operation, when=when, nth=nth)
        engine = self.start("up", "--yes", "--skip-preview", "--stack", "aws")
        aws.wait_until_hanging(operation)
        os.killpg(engine.pid, signal.SIGKILL)
        engine.wait()
        _await_end_of_session(engine.pid)
        aws.release(execute=False)
        aws.clear_faults()
        release_lock(self.path, "aws")

    def secrets(self) -> list[str]:
        """What nobody but this machine (and the node that it belongs to) may know."""
        keys = [path for path in (self.path / ".trainstack").rglob("*") if path.is_file() and _begins_as_key(path)]
        assert len(keys) == 1 + len(self.output("aws")["nodes"]), "the stack's key and a host key for each node"
        return ["PRIVATE KEY", CANARY, *(path.read_text().splitlines()[2] for path in keys)]

    def tells_none_of(self, secrets: list[str]) -> None:
        """Neither in the engine's state nor in anything that was printed so far."""
        folder = self.path / ".trainstack" / "pulumi"
        state = "".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())
        assert "security_group" in state
        for secret in secrets:
            assert secret not in state
            assert secret not in self.said

    def _run(self, argv: list[str], code: int | None) -> subprocess.CompletedProcess[str]:
        done = super()._run(argv, code)
        self.said += done.stdout + done.stderr
        return done


def _await_end_of_session(leader: int) -> None:
    """The engine's plug-ins end when they see that it is gone; until then they would go on with their work."""
    wait_until(
        lambda: all(_session(path) != leader for path in Path("/proc").iterdir() if path.name.isdigit()),
        "the end of the killed engine's plug-ins",
        within_s=30,
    )


def _session(process: Path) -> int | None:
    try:
        return os.getsid(int(process.name))
    except ProcessLookupError:
        return None


def _begins_as_key(path: Path) -> bool:
    return path.read_bytes().startswith(b"-----BEGIN")


@pytest.fixture
def stack(aws: StandIn, aws_plugin: Path, tmp_path: Path) -> Iterator[Stack]:
    made = Stack(tmp_path / "mein träning", engine_environment(aws, aws_plugin))
    yield made
    shutil.rmtree(made.path)


def machines(aws: StandIn) -> list[str]:
    return aws.resources().get("instance", [])


def test_a_cluster_lives_in_the_first_zone_that_has_it_changes_and_goes(stack: Stack, aws: StandIn) -> None:
    aws.capacity(zone=ZONES[0], instance_type="g5.xlarge", machines=0)
    stack.ask(max_hourly_usd=0.5)
    refused = stack.pulumi("preview", "--stack", "aws")
    assert refused.returncode != 0
    assert "key trainstack:cluster.max_hourly_usd is $0.50, but this cluster costs $2." in refused.stdout
    assert aws.resources() == {}

    stack.ask()
    stack.up("aws")
    first = stack.output("aws")
    ids = [node["provider_id"] for node in first["nodes"]]
    assert sorted(ids) == sorted(machines(aws))
    assert first["zone"] == ZONES[1]
    assert listed(stack.mine) == existing(aws)
    address = ec2().describe_addresses(PublicIps=[first["nodes"][0]["public"]["host"]])["Addresses"][0]
    assert (
        address["NetworkInterfaceId"]
        == ec2().describe_instances(InstanceIds=[ids[0]])["Reservations"][0]["Instances"][0]["NetworkInterfaces"][0][
            "NetworkInterfaceId"
        ]
    )
    gateway = ec2().describe_nat_gateways()["NatGateways"][0]
    subnet = ec2().describe_subnets(SubnetIds=[gateway["SubnetId"]])["Subnets"][0]
    assert subnet["AvailabilityZone"] == ZONES[1]

    # Again: nothing is made and nothing changes.
    made = len(aws.operations("RunInstances"))
    again = stack.up("aws")
    assert re.findall(r"\d+ (created|updated|replaced|deleted|unchanged)", again.stdout) == ["unchanged"]
    assert stack.output("aws") == first
    assert len(aws.operations("RunInstances")) == made

    # One is ended by hand: `refresh` sees it, `up` brings one new machine and leaves the other.
    ec2().terminate_instances(InstanceIds=[ids[1]])
    stack.pulumi("refresh", "--yes", "--skip-preview", "--stack", "aws", code=0)
    stack.up("aws")
    mended = [node["provider_id"] for node in stack.output("aws")["nodes"]]
    assert mended[0] == ids[0]
    assert mended[1] != ids[1]
    assert sorted(mended) == sorted(machines(aws))

    stack.ask(nodes=3)
    stack.up("aws")
    grown = [node["provider_id"] for node in stack.output("aws")["nodes"]]
    assert grown[:2] == mended
    assert sorted(grown) == sorted(machines(aws))

    secrets = stack.secrets()
    stack.tells_none_of(secrets)
    ended = stack.destroy("aws")
    assert aws.resources() == {}
    assert "stack aws: nothing is left" in ended.stdout
    assert "receipt: stack aws, 3 node(s) for " in ended.stdout
    stack.tells_none_of(secrets)


def test_without_capacity_in_any_zone_nothing_bills_and_destroy_takes_the_rest(stack: Stack, aws: StandIn) -> None:
    for zone in ZONES:
        aws.capacity(zone=zone, instance_type="g5.xlarge", machines=1)
    stack.ask()
    failed = stack.up("aws", code=None)
    assert failed.returncode != 0
    told = [line for line in failed.stdout.splitlines() if "2 × g5.xlarge (on-demand) can't be had now" in line]
    assert told
    assert all(zone in told[0] for zone in ZONES)
    assert told[0].count("InsufficientInstanceCapacity") == 2
    assert "Traceback" not in failed.stdout + failed.stderr
    assert BILLING.isdisjoint(aws.resources())
    assert listed(stack.mine) == existing(aws)

    ended = stack.destroy("aws")
    assert aws.resources() == {}
    assert "nothing was up, nothing was charged" in ended.stdout


def test_killed_at_call_after_call_it_makes_no_machine_twice(stack: Stack, aws: StandIn) -> None:
    """Each `up` goes on where the one before was killed, and is itself killed a little later."""
    stack.ask()
    stack.killed_up(aws, "RunInstances", "before")
    assert machines(aws) == []
    assert listed(stack.mine) == existing(aws)

    stack.killed_up(aws, "RunInstances", "after")
    assert len(machines(aws)) == 1
    assert listed(stack.mine) == existing(aws)

    stack.killed_up(aws, "AllocateAddress", "after")
    assert len(machines(aws)) == 2
    assert "address" in aws.resources()
    assert listed(stack.mine) == existing(aws)

    stack.up("aws")
    nodes = [node["provider_id"] for node in stack.output("aws")["nodes"]]
    assert sorted(nodes) == sorted(machines(aws))
    assert listed(stack.mine) == existing(aws)

    secrets = stack.secrets()
    stack.destroy("aws")
    assert aws.resources() == {}
    stack.tells_none_of(secrets)


CREATES = (
    *("CreateVpc", "CreateInternetGateway", "AttachInternetGateway", "CreateRouteTable", "CreateSubnet"),
    *("CreateRoute", "AssociateRouteTable", "CreateVpcEndpoint", "CreateSecurityGroup", "CreatePlacementGroup"),
    *("AuthorizeSecurityGroupIngress", "AuthorizeSecurityGroupEgress", "RunInstances", "AllocateAddress"),
    *("CreateNatGateway", "AssociateAddress"),
)


@pytest.mark.sweep
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", CREATES)
def test_killed_at_each_create(stack: Stack, aws: StandIn, operation: str, when: Literal["before", "after"]) -> None:
    stack.ask()
    stack.killed_up(aws, operation, when)
    assert listed(stack.mine) == existing(aws)

    done = stack.up("aws", code=None)
    # What the killed engine made and didn't note may be in the way (a subnet's addresses): then AWS refuses, and
    # `make destroy` is the way on.
    assert len(machines(aws)) <= 2
    assert done.returncode != 0 or len(machines(aws)) == 2
    assert listed(stack.mine) == existing(aws)

    # The engine trips over what it doesn't know (a subnet in its VPC) and says so; the sweep removes that as well.
    stack.destroy("aws", code=None)
    assert aws.resources() == {}
    stack.destroy("aws")
