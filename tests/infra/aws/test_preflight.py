"""What is told before anything is made, from AWS's own answers as the stand-in gives them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from infra.providers.aws import instances, plan, preflight
from infra.providers.base import Deployment
from tests.infra.aws.asking import FILE, Place, asked, deployment, ec2, order
from tests.stand_ins.aws.client import StandIn

ARM_IMAGE = "ami-0a4d000000022040"
P_ON_DEMAND, P_SPOT = "L-417A185B", "L-7212CCBC"


@pytest.fixture(autouse=True)
def _account(aws: StandIn) -> None:
    """With room for what is asked for."""
    for code in (P_ON_DEMAND, P_SPOT):
        aws.quota(code, 1000)


def told(mine: Deployment, **keys: Any) -> list[str]:
    return preflight.problems(asked(**keys), mine)


def reserve(zone: str = "us-east-1b", *, kind: str = "p5.48xlarge", count: int = 2) -> str:
    answer = ec2().create_capacity_reservation(
        InstanceType=kind, InstancePlatform="Linux/UNIX", AvailabilityZone=zone, InstanceCount=count
    )
    return str(answer["CapacityReservation"]["CapacityReservationId"])


def test_when_all_is_right_nothing_is_told_and_nothing_is_made(mine: Deployment, aws: StandIn) -> None:
    assert told(mine) == []
    assert told(mine, market="spot", nodes=5) == []
    assert aws.resources() == {}
    assert not [call for call in aws.calls() if not call["operation"].startswith(("Describe", "Get", "List"))]


def test_without_an_identity_only_that_is_told(mine: Deployment, aws: StandIn) -> None:
    aws.fail("GetCallerIdentity", "InvalidClientTokenId", status=403, message="The security token is invalid.")
    (line,) = told(mine)
    assert line.startswith("AWS credentials: The security token is invalid. (InvalidClientTokenId): ")
    assert "look at the keys" in line


@pytest.mark.usefixtures("fresh_clients")
def test_without_credentials_it_says_how_to_get_some(mine: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    (line,) = told(mine)
    assert line.startswith("AWS credentials: there are no credentials for AWS")
    assert "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in line


@pytest.mark.usefixtures("fresh_clients")
def test_a_profile_that_is_not_there_is_named(mine: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    (line,) = told(mine)
    assert "nobody" in line
    assert "set AWS_PROFILE" in line


@contextlib.contextmanager
def proxy() -> Iterator[str]:
    """Answers everything with its own page, as one that wants to be logged in to does; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            page = b"<html>Please log in</html>"
            self.send_response(200)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.usefixtures("fresh_clients")
def test_a_page_of_a_proxy_is_no_answer_of_aws(mine: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    with proxy() as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        (line,) = told(mine)
    assert line.startswith("AWS credentials: ")
    assert "\n" not in line


# -- quota ----------------------------------------------------------------------------------------------------------


def test_a_quota_of_nothing(mine: Deployment, aws: StandIn) -> None:
    aws.quota(P_ON_DEMAND, 0)
    (line,) = told(mine)
    assert line.startswith(
        "quota: 2 × p5.48xlarge need 384 vCPUs of 'Running On-Demand P instances' (L-417A185B, on-demand) in "
        "us-east-1, and 0 of 0 are free: ask for 384 under Service Quotas"
    )
    assert "market: spot, which has a quota of its own (L-7212CCBC)" in line


@pytest.mark.parametrize(
    ("market", "code", "other"), [("on-demand", P_ON_DEMAND, P_SPOT), ("spot", P_SPOT, P_ON_DEMAND)]
)
def test_a_quota_that_is_short_by_one_in_its_own_pool(
    mine: Deployment, aws: StandIn, market: str, code: str, other: str
) -> None:
    aws.quota(code, 383)
    aws.quota(other, 384)
    (line,) = told(mine, market=market)
    assert f"need 384 vCPUs of {instances.QUOTAS['P', market][1]!r} ({code}, {market})" in line
    assert "383 of 383 are free: ask for 384 under" in line
    aws.quota(code, 384)
    aws.quota(other, 0)
    assert told(mine, market=market) == []


def test_others_machines_take_from_the_quota_and_our_own_are_not_needed_twice(
    mine: Deployment, aws: StandIn, tmp_path: Path
) -> None:
    place = Place(mine)
    place.machines(instance="p5.48xlarge").launch(order())
    aws.quota(P_ON_DEMAND, 384)
    assert told(mine) == []
    assert told(mine, market="spot") == []
    (line,) = told(mine, nodes=3)
    assert "quota: 2 × p5.48xlarge need 384 vCPUs" in line
    assert "192 of 384 are free: ask for 576" in line
    (tmp_path / "other").mkdir()
    (line,) = told(deployment(tmp_path / "other", "another"))
    assert "192 of 384 are free" in line


def test_a_quota_lowered_below_what_runs_is_no_reason_against_what_is_there(mine: Deployment, aws: StandIn) -> None:
    Place(mine).machines(instance="p5.48xlarge").launch(order())
    aws.quota(P_ON_DEMAND, 0)
    assert told(mine, nodes=1) == []


def test_a_quota_that_the_account_never_had_changed_is_the_default(mine: Deployment, aws: StandIn) -> None:
    aws.fail("GetServiceQuota", "NoSuchResourceException", message="The request failed: not found.", times=4)
    assert told(mine) == []
    (line,) = told(mine, nodes=9)
    assert "1536 of 1536 are free" in line


def test_without_the_right_to_ask_for_quotas_that_is_told(mine: Deployment, aws: StandIn) -> None:
    aws.fail("GetServiceQuota", "AccessDeniedException", message="not authorized", times=2)
    addresses, machines = told(mine)
    assert addresses.startswith("quota L-0263D0A3 in us-east-1: not authorized (AccessDeniedException): ")
    assert machines.startswith("quota L-417A185B in us-east-1: not authorized (AccessDeniedException): ")
    assert machines.endswith("(the preflight only reads)")


def test_addresses_are_asked_for_last_so_their_quota_is_looked_at_first(mine: Deployment) -> None:
    for _ in range(4):
        ec2().allocate_address(Domain="vpc")
    (line,) = told(mine)
    assert line.startswith("quota: 2 public address(es) are needed, and 1 of 5 of 'EC2-VPC Elastic IPs' (L-0263D0A3)")
    assert "ask for 6" in line
    assert told(mine, egress="endpoints") == []
    tags = [{"Key": "trainstack", "Value": mine.identity}, {"Key": "trainstack-owner", "Value": mine.owner}]
    first = ec2().describe_addresses()["Addresses"][0]["AllocationId"]
    ec2().create_tags(Resources=[first], Tags=tags)  # ours, of the `up` before: one more is enough
    assert told(mine) == []


def test_a_disk_that_the_image_does_not_fit_on(mine: Deployment, aws: StandIn) -> None:
    (line,) = told(mine, disk_gib=5)
    assert line.startswith(f"{FILE}, key trainstack:cluster.disk_gib is 5, and the image needs ")
    assert aws.resources() == {}


# -- place ----------------------------------------------------------------------------------------------------------


def test_a_region_without_the_type(mine: Deployment, aws: StandIn) -> None:
    aws.offer_only_in("p5.48xlarge", [])
    assert told(mine) == [
        f"{FILE}, key trainstack:cluster.gpus: AWS has no p5.48xlarge in us-east-1 at all: "
        "take another region or machine"
    ]
    assert told(mine, instance="p5.48xlarge")[0].startswith(f"{FILE}, key trainstack:cluster.instance: AWS has no ")


def test_a_zone_without_the_type_names_those_with(mine: Deployment, aws: StandIn) -> None:
    aws.offer_only_in("p5.48xlarge", ["us-east-1b", "us-east-1c"])
    (line,) = told(mine, zones=["us-east-1a", "us-east-1b"])
    assert line == (
        f"{FILE}, key trainstack:cluster.zones: us-east-1a has no p5.48xlarge: take of us-east-1b, us-east-1c, "
        "or remove the key"
    )
    plan.offering_zones.cache_clear()
    assert told(mine) == []


# -- image ----------------------------------------------------------------------------------------------------------


def test_an_image_that_is_not_there(mine: Deployment) -> None:
    (line,) = told(mine, image="ami-00000000000000000")
    assert line.startswith("image ami-00000000000000000 in us-east-1: ")
    assert "InvalidAMIID.NotFound" in line
    (line,) = told(mine, image="/aws/service/none/ami-id")
    assert line.startswith("image '/aws/service/none/ami-id', SSM /aws/service/none/ami-id in us-east-1: ")


def test_an_image_for_another_processor(mine: Deployment) -> None:
    (line,) = told(mine, image=ARM_IMAGE)
    assert line == f"image {ARM_IMAGE} is for arm64, and the machine is x86_64"


# -- reservations ---------------------------------------------------------------------------------------------------


def test_a_reservation_that_fits_needs_no_quota(mine: Deployment, aws: StandIn) -> None:
    aws.quota(P_ON_DEMAND, 0)
    assert told(mine, reservation=reserve()) == []
    assert told(mine, reservation=reserve("us-east-1a"), zones=["us-east-1a"]) == []


@pytest.mark.parametrize(
    ("held", "keys", "says"),
    [
        ({"kind": "p4d.24xlarge"}, {}, "is of p4d.24xlarge, not of p5.48xlarge: name one that fits"),
        ({"count": 1}, {}, "has 1 machines free, and 2 are needed: ask for fewer nodes"),
        ({}, {"zones": ["us-east-1a"]}, "is in us-east-1b, which zones leaves out: remove zones"),
    ],
)
def test_a_reservation_that_does_not_fit(
    mine: Deployment, held: dict[str, Any], keys: dict[str, Any], says: str
) -> None:
    id_ = reserve(**held)
    found = told(mine, reservation=id_, **keys)
    assert f"{FILE}, key trainstack:cluster.reservation: {id_} {says}" in found


def test_a_reservation_that_was_cancelled_or_never_was(mine: Deployment) -> None:
    id_ = reserve()
    ec2().cancel_capacity_reservation(CapacityReservationId=id_)
    assert any(f"{id_} is cancelled: name one that is active" in line for line in told(mine, reservation=id_))
    (line, *_) = told(mine, reservation="cr-00000000000000000")
    assert line.startswith("reservation cr-00000000000000000 in us-east-1: ")


def test_a_capacity_block(mine: Deployment, aws: StandIn) -> None:
    aws.offer_block("cb-1", instance_type="p5.48xlarge", count=2, zone="us-east-1b", hours=24)
    bought = ec2().purchase_capacity_block(CapacityBlockOfferingId="cb-1", InstancePlatform="Linux/UNIX")
    block = bought["CapacityReservation"]
    problems = told(mine, reservation=block["CapacityReservationId"])
    assert (problems == []) == (block["State"] == "active")
    choice = plan.plan(asked(reservation=block["CapacityReservationId"]))
    assert plan.zones_in_order(asked(reservation=block["CapacityReservationId"]), choice) == ["us-east-1b"]
    assert plan.reservation("us-east-1", block["CapacityReservationId"])["ReservationType"] == "capacity-block"


# -- others ---------------------------------------------------------------------------------------------------------


def test_another_checkout_s_machines_of_the_same_stack_name(mine: Deployment, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    id_ = Place(deployment(tmp_path / "other")).machines().launch(order())
    (line,) = told(mine)
    assert f"machines of a stack aws that another checkout made ({id_}): take another stack name" in line
    assert "`fab leftovers --stack aws --remove`" in line
    ec2().terminate_instances(InstanceIds=[id_])
    assert told(mine) == []


def test_everything_is_told_at_once(mine: Deployment, aws: StandIn, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    Place(deployment(tmp_path / "other")).machines().launch(order())
    aws.quota(P_ON_DEMAND, 0)
    aws.offer_only_in("p5.48xlarge", ["us-east-1b"])
    found = told(mine, zones=["us-east-1a"], image="ami-00000000000000000")
    for line, words in zip(found, ("another checkout", "cluster.zones", "image ami-", "quota: "), strict=True):
        assert words in line


def test_a_question_that_is_refused_is_no_all_clear(mine: Deployment, aws: StandIn) -> None:
    aws.fail("DescribeInstanceTypeOfferings", "UnauthorizedOperation")
    (line,) = told(mine)
    assert "describe_instance_type_offerings in us-east-1: as asked (UnauthorizedOperation)" in line


def test_the_region_of_the_stack_file_is_asked_whatever_the_environment_says(
    mine: Deployment, aws: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "eu-central-1")
    told(mine, region="us-west-2")
    assert {call["region"] for call in aws.calls()} == {"us-west-2"}
