"""The unmodified program under the real engine, with the stand-in for Vast.ai: from nothing to a node and back."""

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
from tests.stand_ins.vast.server import KEY, StandIn

pytestmark = pytest.mark.end_to_end
SPEC: dict[str, Any] = {"provider": "vast", "nodes": 1, "gpus": "H100:8", "max_hourly_usd": 17}
QUIET = ("--yes", "--skip-preview", "--suppress-outputs", "--stack", "vast")


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
    made.cluster("vast", **SPEC)
    return made


def test_a_node_comes_up_stays_and_goes(cloud: StandIn, checkout: Checkout) -> None:
    cloud.offer()
    preview = checkout.pulumi("preview", "--stack", "vast", code=0).stdout
    assert "$16.05 per hour" in preview
    assert "and $0.002 per GB that comes in" in preview
    assert "SSH is open to the whole world" in preview
    assert cloud.instances == {}

    checkout.up("vast")
    cluster = Cluster.from_json(checkout.output("vast"))
    (node,) = cluster.nodes
    assert [node.provider_id] == cloud.billing()
    assert node.public is not None
    assert (node.public.host, node.public.port, node.user) == ("198.51.100.1", 40001, "root")
    assert (node.gpu_model, node.gpu_count, node.processes) == ("H100", 8, 8)
    # The one offer that there was is taken, and the price is known all the same.
    checkout.pulumi("up", *QUIET, "--expect-no-changes", code=0)

    told = checkout.leftovers("vast", code=6).stdout
    assert told.count("instance ") == 1
    assert "16.05" in told
    assert "receipt: stack vast, 1 node(s)" in checkout.destroy("vast").stdout
    assert cloud.billing() == []
    bill = cloud.bill()
    files = [path for path in (checkout.path / ".trainstack").rglob("*.json*") if path.is_file()]
    assert KEY not in "".join(path.read_text(errors="replace") for path in files)
    checkout.leftovers("vast", code=0)
    assert cloud.bill() == bill


def test_killed_in_a_create_the_next_up_adopts_the_machine(cloud: StandIn, checkout: Checkout) -> None:
    cloud.offer()
    cloud.offer()
    cloud.hang("PUT", r"/api/v0/asks/\d+/", executes=True)
    engine = checkout.start("up", *QUIET)
    cloud.wait_until_hanging()
    os.killpg(engine.pid, signal.SIGKILL)
    engine.wait()
    (first,) = cloud.billing()
    release_lock(checkout.path, "vast")
    assert first in checkout.leftovers("vast", code=6).stdout

    checkout.up("vast")
    assert cloud.billing() == [first]
    checkout.destroy("vast")
    assert cloud.billing() == []
