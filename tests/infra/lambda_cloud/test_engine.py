"""The unmodified program under the real engine, with the stand-in for Lambda: from nothing to a cluster and back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.cluster import Cluster
from infra.destroy import release_lock
from infra.errors import EngineError
from infra.pulumi_engine import find_pulumi
from tests.infra.checkouts import ROOT, Checkout
from tests.stand_ins.lambda_cloud.server import KEY, StandIn

pytestmark = pytest.mark.end_to_end
SPEC: dict[str, Any] = {
    "provider": "lambda",
    "nodes": 2,
    "gpus": "H100:8",
    "ssh_from": ["203.0.113.7"],
    "max_hourly_usd": 50,
}
QUIET = ("--yes", "--skip-preview", "--suppress-outputs", "--stack", "lambda")


@pytest.fixture
def cloud() -> Iterator[StandIn]:
    with StandIn() as server:
        yield server


@pytest.fixture
def checkout(cloud: StandIn, tmp_path: Path) -> Checkout:
    try:
        find_pulumi(ROOT)
    except EngineError as error:
        pytest.skip(str(error))
    made = Checkout(tmp_path / "mein Prüf stand", cloud.env)
    made.cluster("lambda", **SPEC)
    return made


def test_a_cluster_comes_up_stays_and_goes(cloud: StandIn, checkout: Checkout) -> None:
    cloud.capacity = {("us-east-1", "gpu_8x_h100_sxm5"): 1, ("us-west-1", "gpu_8x_h100_sxm5"): 2}
    preview = checkout.pulumi("preview", "--stack", "lambda", code=0).stdout
    assert "$47.84 per hour" in preview
    assert "and $47.84 per hour after that, until `make destroy`" in preview
    assert (cloud.instances, cloud.keys) == ({}, {})

    checkout.up("lambda")
    before = checkout.output("lambda")
    cluster = Cluster.from_json(before)
    assert (cluster.region, cluster.zone) == ("us-west-1", "us-west-1")
    assert [node.provider_id for node in cluster.nodes] == cloud.billing()
    assert cluster.head.public is not None
    assert cluster.head.public.host.startswith("198.51.100.")
    checkout.pulumi("up", *QUIET, "--expect-no-changes", code=0)

    told = checkout.leftovers("lambda", code=6).stdout
    assert [told.count(kind) for kind in ("instance ", "firewall ruleset", "SSH key")] == [2, 2, 1]
    assert "23.92" in told
    assert "receipt: stack lambda, 2 node(s)" in checkout.destroy("lambda").stdout
    assert (cloud.billing(), cloud.rulesets, cloud.keys) == ([], {}, {})
    bill = cloud.bill()
    state = "".join(
        path.read_text(errors="replace") for path in (checkout.path / ".trainstack").rglob("*.json*") if path.is_file()
    )
    assert KEY not in state
    checkout.leftovers("lambda", code=0)
    assert cloud.bill() == bill


def test_killed_in_a_launch_the_next_up_adopts_the_machine(cloud: StandIn, checkout: Checkout) -> None:
    cloud.hang("/api/v1/instance-operations/launch", executes=True)
    engine = checkout.start("up", *QUIET)
    cloud.wait_until_hanging()
    os.killpg(engine.pid, signal.SIGKILL)
    engine.wait()
    (first,) = cloud.billing()
    release_lock(checkout.path, "lambda")
    assert first in checkout.leftovers("lambda", code=6).stdout

    checkout.up("lambda")
    assert first in cloud.billing()
    assert len(cloud.billing()) == 2
    checkout.destroy("lambda")
    assert (cloud.billing(), cloud.rulesets, cloud.keys) == ([], {}, {})
