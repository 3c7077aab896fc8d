"""The unmodified program under the real engine, with the stand-in for Google: from nothing to a cluster and back."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from infra.cluster import Cluster
from infra.errors import EngineError
from infra.pulumi_engine import find_pulumi
from tests.infra.checkouts import ROOT, Checkout
from tests.stand_ins.gcp.client import StandIn
from tests.stand_ins.gcp.fixtures import engine_environment, gcp, gcp_key, gcp_plugin

__all__ = ["gcp", "gcp_key", "gcp_plugin"]
pytestmark = pytest.mark.end_to_end

SPEC: dict[str, Any] = {
    "provider": "gcp",
    "nodes": 2,
    "instance": "g2-standard-8",
    "zones": ["us-central1-a", "us-central1-b"],
    "ssh_from": ["203.0.113.7"],
    "max_hourly_usd": 10,
}
QUIET = ("--yes", "--skip-preview", "--suppress-outputs")


@pytest.fixture
def checkout(gcp: StandIn, gcp_plugin: Path, tmp_path: Path) -> Checkout:
    try:
        engine = find_pulumi(ROOT)
    except EngineError as error:
        pytest.skip(str(error))
    base = engine_environment(gcp, gcp_plugin)
    base["PATH"] = f"{gcp_plugin}{os.pathsep}{engine.parent}{os.pathsep}{os.environ['PATH']}"
    return Checkout(tmp_path / "mein Prüf stand", base)


def test_a_cluster_comes_up_stays_and_goes(gcp: StandIn, checkout: Checkout) -> None:
    checkout.cluster("gcp", **SPEC)
    preview = checkout.pulumi("preview", "--stack", "gcp", code=0).stdout
    assert "2 × g2-standard-8 on demand in us-central1" in preview
    assert "estimated cost" in preview
    assert gcp.leftovers() == []

    gcp.set_capacity("us-central1-a", "g2-standard-8", machines=1)
    checkout.up("gcp")
    before = checkout.output("gcp")
    cluster = Cluster.from_json(before)
    assert cluster.zone == "us-central1-b"  # a had one of the two
    assert len([path for path in gcp.leftovers() if "/instances/" in path]) == 2
    again = checkout.pulumi("up", *QUIET, "--stack", "gcp", "--expect-no-changes", code=0).stdout
    assert "unchanged" in again
    checkout.pulumi("refresh", *QUIET, "--stack", "gcp", "--expect-no-changes", code=0)
    assert checkout.output("gcp") == before

    dead = cluster.nodes[1].provider_id.partition("/")
    gcp.remove(f"zones/{dead[0]}/instances/{dead[2]}")
    checkout.up("gcp")
    assert len([path for path in gcp.leftovers() if "/instances/" in path]) == 2
    assert checkout.output("gcp")["nodes"][0] == before["nodes"][0]

    told = checkout.leftovers("gcp", code=6).stdout
    for kind in ("instance", "disk", "router with NAT", "placement policy", "firewall", "subnetwork", "network"):
        assert kind in told
    said = checkout.destroy("gcp").stdout
    assert "receipt: stack gcp, 2 node(s)" in said
    assert gcp.leftovers() == []
    checkout.leftovers("gcp", code=0)
    checkout.destroy("gcp")


def test_a_gang_that_cant_be_had_leaves_nothing_that_bills(gcp: StandIn, checkout: Checkout) -> None:
    checkout.cluster("gcp", **SPEC)
    for zone in SPEC["zones"]:
        gcp.set_capacity(zone, "g2-standard-8", machines=1)
    failed = checkout.up("gcp", code=None)
    assert failed.returncode != 0
    assert "can't be had now" in failed.stdout + failed.stderr
    assert "Traceback" not in failed.stdout + failed.stderr
    free = ("networks", "subnetworks", "firewalls", "resourcePolicies")
    assert {path.split("/")[-2] for path in gcp.leftovers()} <= set(free)
    checkout.destroy("gcp")
    assert gcp.leftovers() == []


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.sweep), "after"])
def test_an_engine_killed_at_the_first_machine(gcp: StandIn, checkout: Checkout, when: Any) -> None:
    """The second `up` makes no extra machine; `destroy` ends with nothing."""
    checkout.cluster("gcp", **SPEC)
    gcp.hang("compute.instances.insert", when=when)
    engine = checkout.start("up", "--yes", "--skip-preview", "--stack", "gcp")
    gcp.wait_until_hanging("compute.instances.insert", timeout_s=120)
    os.killpg(engine.pid, signal.SIGKILL)
    engine.wait()
    gcp.release(execute=True)
    checkout.leftovers("gcp", code=6)
    checkout.pulumi("cancel", "--yes", "--stack", "gcp")
    checkout.pulumi("refresh", "--clear-pending-creates", *QUIET, "--stack", "gcp", code=0)
    # What Pulumi had made and not yet written down (a network, a firewall) is the sweep's: see the destroy below.
    checkout.pulumi("up", *QUIET, "--stack", "gcp")
    assert len([path for path in gcp.leftovers() if "/instances/" in path]) == 2
    checkout.destroy("gcp")
    assert gcp.leftovers() == []


@pytest.mark.sweep
def test_rdma_with_a_bucket(gcp: StandIn, checkout: Checkout) -> None:
    spec = {"provider": "gcp", "region": "us-central1", "nodes": 2, "gpus": "B200:8", "market": "spot"}
    checkout.cluster("gcp", **spec, ssh_from=["203.0.113.7"], egress="endpoints", storage={"kind": "bucket"})
    checkout.up("gcp")
    cluster = Cluster.from_json(checkout.output("gcp"))
    assert cluster.storage is not None
    assert cluster.storage.address.startswith("gs://")
    assert cluster.head.processes == 8
    zone, _, name = cluster.head.provider_id.partition("/")
    machine = gcp.resource(f"zones/{zone}/instances/{name}")
    assert [nic["nicType"] for nic in machine["networkInterfaces"]] == ["GVNIC"] * 2 + ["MRDMA"] * 8
    gcp.put_object(cluster.storage.address.removeprefix("gs://"), "runs/checkpoint 1")
    checkout.pulumi("up", *QUIET, "--stack", "gcp", "--expect-no-changes", code=0)
    checkout.destroy("gcp")
    assert gcp.leftovers() == []
