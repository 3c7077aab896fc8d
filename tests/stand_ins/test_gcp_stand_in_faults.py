"""The faults that a test may order of the stand-in for GCP, as Google's own client sees them."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import google.auth
import pytest
import requests
from google.auth.exceptions import RefreshError
from google.auth.transport.requests import AuthorizedSession

from tests.stand_ins.gcp.client import PROJECT, StandIn
from tests.stand_ins.gcp.fixtures import gcp, gcp_key
from tests.stand_ins.gcp.google_client import (
    INSERT,
    REGION,
    ZONE,
    Compute,
    codes,
    compute,
    machine,
    refused,
    spot,
)

__all__ = ["compute", "gcp", "gcp_key"]


def test_no_capacity_is_told_by_the_operation(gcp: StandIn, compute: Compute) -> None:
    compute.network()
    gcp.set_capacity(ZONE, "g2-standard-4", machines=1)
    assert codes(compute.machine(machine("g2-standard-4"))) == []
    second = compute.machine(machine("g2-standard-4", name="node-1"))
    assert codes(second) == ["ZONE_RESOURCE_POOL_EXHAUSTED"]
    assert second["httpErrorStatusCode"] == 503
    assert not [path for path in gcp.leftovers() if path.endswith("node-1")]
    compute.delete("instances", zone=ZONE, instance="node-0")
    assert codes(compute.machine(machine("g2-standard-4", name="node-2"))) == []
    gcp.refuse_as_unsupported(ZONE, "g2-standard-8")
    assert codes(compute.machine(machine("g2-standard-8", name="node-3"))) == ["UNSUPPORTED_OPERATION"]
    gcp.offer("g2-standard-8", zones=["us-central1-a"])
    assert "does not exist in zone" in refused(lambda: compute.machine(machine("g2-standard-8", name="node-3")))[2]


def test_quotas_of_regions_and_of_gpu_families(gcp: StandIn, compute: Compute) -> None:
    compute.network()
    gcp.set_quota("NVIDIA_L4_GPUS", 1, region=REGION)
    gcp.set_quota("family/NVIDIA_H100", 4, region=REGION)
    assert codes(compute.machine(machine("g2-standard-4"))) == []
    over = compute.machine(machine("g2-standard-4", name="node-1"))
    assert codes(over) == ["QUOTA_EXCEEDED"]
    assert "'NVIDIA_L4_GPUS' exceeded.  Limit: 1" in over["error"]["errors"][0]["message"]
    assert codes(compute.machine(machine("a3-highgpu-8g", name="node-2"))) == ["QUOTA_EXCEEDED"]
    quotas = compute.api.regions().get(project=PROJECT, region=REGION).execute()["quotas"]
    assert {"metric": "NVIDIA_L4_GPUS", "limit": 1, "usage": 1} in quotas

    credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    session = AuthorizedSession(credentials)
    base = gcp.env["GOOGLE_CLOUD_QUOTAS_CUSTOM_ENDPOINT"]
    url = f"{base}projects/{PROJECT}/locations/global/services/compute.googleapis.com/quotaInfos"
    (info,) = [
        each for each in session.get(url).json()["quotaInfos"] if each["metric"].endswith("/gpus_per_gpu_family")
    ]
    wanted = {"gpu_family": "NVIDIA_H100", "region": REGION}
    assert [d["details"]["value"] for d in info["dimensionsInfos"] if d.get("dimensions") == wanted] == ["4"]
    skus = session.get(f"{base}services/6F81-5844-456A/skus", params={"pageSize": 5}).json()
    assert len(skus["skus"]) == 5
    assert skus["nextPageToken"] == "5"
    assert session.get(f"{base}projects/{PROJECT}").json()["lifecycleState"] == "ACTIVE"
    gcp.switch_api("compute", on=False)
    assert session.get(f"{base}projects/{PROJECT}/services/compute.googleapis.com").json()["state"] == "DISABLED"
    assert refused(compute.api.zones().list(project=PROJECT).execute)[:2] == (403, "accessNotConfigured")


def test_refusals_for_the_next_calls(gcp: StandIn, compute: Compute) -> None:
    look = compute.api.zones().list(project=PROJECT)
    gcp.fail("compute.zones.list", code=500, times=2)
    assert [refused(look.execute)[0] for _ in range(2)] == [500, 500]
    assert look.execute()["items"]
    gcp.throttle("compute.zones.*", code=429)
    assert refused(look.execute)[:2] == (429, "rateLimitExceeded")
    gcp.throttle("compute.zones.*")
    assert refused(look.execute)[:2] == (403, "rateLimitExceeded")
    gcp.deny()
    assert refused(look.execute)[:2] == (403, "forbidden")
    gcp.clear_failures()
    gcp.spoil("compute.zones.list", "malformed")
    assert look.execute() == '{"kind": "compute#'  # Google's client hands out as it is what isn't JSON
    gcp.spoil("compute.zones.list", "empty")
    assert look.execute() == ""
    assert [call["outcome"] for call in gcp.calls("compute.zones.list")] == [500, 500, 200, 429, 403, 403, 200, 200]


def test_tokens_expire_and_keys_are_revoked(gcp: StandIn, compute: Compute) -> None:
    look = compute.api.zones().list(project=PROJECT)
    gcp.expire_tokens(after_calls=1)
    assert look.execute()["items"]
    assert look.execute()["items"]  # Google's client asks for a new token after the 401
    assert [call["outcome"] for call in gcp.calls()] == [200, 401, 200]
    gcp.revoke_key()
    with pytest.raises(RefreshError, match="invalid_grant"):
        look.execute()


def test_what_was_just_made_is_not_seen_yet(gcp: StandIn, compute: Compute) -> None:
    compute.network()
    gcp.hide_new(INSERT, reads=2)
    compute.machine(machine())
    instances = compute.api.instances()
    assert "items" not in instances.list(project=PROJECT, zone=ZONE).execute()
    get = instances.get(project=PROJECT, zone=ZONE, instance="node-0")
    assert refused(get.execute)[0] == 404
    assert get.execute()["status"] == "RUNNING"


@pytest.mark.parametrize(
    ("when", "execute", "exists"), [("before", False, False), ("before", True, True), ("after", False, True)]
)
def test_a_call_hangs_until_it_is_released(
    gcp: StandIn, compute: Compute, when: Any, execute: bool, exists: bool
) -> None:
    compute.network()
    gcp.hang(INSERT, when=when)
    credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/compute"])
    session = AuthorizedSession(credentials)  # httplib2 would send the POST again after a dropped connection

    def call() -> None:
        url = f"{gcp.env['GOOGLE_COMPUTE_CUSTOM_ENDPOINT']}projects/{PROJECT}/zones/{ZONE}/instances"
        with contextlib.suppress(requests.ConnectionError):
            session.post(url, json=machine())

    caller = threading.Thread(target=call)
    caller.start()
    gcp.wait_until_hanging(INSERT)
    assert any(path.endswith("instances/node-0") for path in gcp.leftovers()) == (when == "after")
    assert gcp.release(execute=execute) == 1
    caller.join(timeout=30)
    assert any(path.endswith("instances/node-0") for path in gcp.leftovers()) == exists


def test_time_ends_machines_and_spot_ones_are_preempted(gcp: StandIn, compute: Compute) -> None:
    compute.network()
    compute.machine(machine(scheduling={"maxRunDuration": {"seconds": "3600"}, "instanceTerminationAction": "DELETE"}))
    compute.machine(machine("g2-standard-4", name="spot-0", scheduling=spot()))
    compute.machine(machine("g2-standard-4", name="spot-1", scheduling=spot(instanceTerminationAction="STOP")))
    gcp.let_time_pass(3599)
    assert gcp.resource(f"zones/{ZONE}/instances/node-0")["status"] == "RUNNING"
    gcp.let_time_pass(1)
    gcp.preempt(ZONE, "spot-0")
    gcp.preempt(ZONE, "spot-1")
    assert [path.rpartition("/")[2] for path in gcp.leftovers() if "/instances/" in path] == ["spot-1"]
    assert gcp.resource(f"zones/{ZONE}/instances/spot-1")["status"] == "TERMINATED"
    operations = compute.api.zoneOperations().list(project=PROJECT, zone=ZONE).execute()["items"]
    assert sum(each["operationType"] == "compute.instances.preempted" for each in operations) == 2
    gcp.operations_take(3)
    operation = compute.api.instances().delete(project=PROJECT, zone=ZONE, instance="spot-1").execute()
    assert [compute.wait(operation)["status"] for _ in range(3)] == ["RUNNING", "RUNNING", "DONE"]


def test_methods_outside_the_double_are_refused_by_name(compute: Compute) -> None:
    code, reason, message = refused(compute.api.snapshots().list(project=PROJECT).execute)
    assert (code, reason) == (400, "notImplementedByStandIn")
    assert "compute.snapshots.list" in message
