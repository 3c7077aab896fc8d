"""Preflight against the stand-in: everything that is wrong, said before anything is made; and nothing is made by it."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from infra.providers.base import Deployment
from infra.providers.gcp import PROVIDER, api
from infra.providers.gcp.machines import GcpMachines
from tests.infra.gcp.asking import PINNED, asked, clouds_wish, deployment, order
from tests.stand_ins.gcp.client import PROJECT, StandIn
from tests.stand_ins.gcp.fixtures import gcp, gcp_key  # noqa: F401


def said(mine: Deployment, **keys: Any) -> list[str]:
    return PROVIDER.preflight(asked(**keys), mine)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"market": "spot", "zones": ["us-central1-b", "us-central1-a"]},
        {"market": "flex-start"},
        {"instance": None, "gpus": "H100:8"},
        {"instance": "a3-megagpu-8g", "market": "spot"},
        {"instance": "a4-highgpu-8g", "market": "spot"},
    ],
    ids=str,
)
def test_what_can_be_had_is_not_refused(gcp: StandIn, mine: Deployment, keys: dict[str, Any]) -> None:  # noqa: F811
    assert said(mine, **keys) == []
    assert gcp.leftovers() == []
    assert not [call for call in gcp.calls() if call["method"].endswith((".insert", ".create", ".delete"))]


def test_a_wrong_key_is_said_without_asking_google(gcp: StandIn, mine: Deployment) -> None:  # noqa: F811
    (sentence,) = said(mine, nodes=65)
    assert sentence == "stacks/Pulumi.gcp.yaml, key trainstack:cluster.nodes is 65: a gang on GCP has at most 64"
    assert gcp.calls() == []


def test_no_credentials(mine: Deployment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GOOGLE_OAUTH_ACCESS_TOKEN")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nothing.json"))
    (sentence,) = said(mine)
    assert "gcloud auth application-default login" in sentence


def test_credentials_that_expired(gcp: StandIn, mine: Deployment) -> None:  # noqa: F811
    gcp.revoke_key()
    (sentence,) = said(mine)
    assert "gcloud auth application-default login" in sentence


def test_no_such_project(gcp: StandIn, mine: Deployment) -> None:  # noqa: F811
    del gcp
    mine.stack_file.parent.mkdir()
    mine.stack_file.write_text("config: {'gcp:project': nowhere}")
    (sentence,) = said(mine)
    assert "Google Cloud project nowhere" in sentence


def test_an_api_that_is_off(gcp: StandIn, mine: Deployment) -> None:  # noqa: F811
    gcp.fail(
        "compute.*",
        code=403,
        reason="accessNotConfigured",
        message="Compute Engine API has not been used in project 1 before or it is disabled.",
        times=None,
    )
    (sentence,) = said(mine)
    assert "gcloud services enable compute.googleapis.com" in sentence


@pytest.mark.parametrize("how", ["malformed", "empty"])
def test_an_answer_that_is_none_isnt_all_is_well(gcp: StandIn, mine: Deployment, how: Any) -> None:  # noqa: F811
    for method in ("compute.machineTypes.aggregatedList", "compute.regions.get", "compute.networks.list"):
        gcp.spoil(method, how)
    assert len(said(mine)) == 3


def test_a_region_without_the_machine(gcp: StandIn, mine: Deployment) -> None:  # noqa: F811
    gcp.offer("g2-standard-8", zones=["us-east4-a"])
    assert any("cluster.instance: Google has no g2-standard-8 anywhere in us-central1" in each for each in said(mine))


def test_a_zone_without_the_machine(gcp: StandIn, mine: Deployment) -> None:  # noqa: F811
    gcp.offer("g2-standard-8", zones=["us-central1-a", "us-central1-c"])
    (sentence,) = said(mine, zones=["us-central1-a", "us-central1-b"])
    assert "cluster.zones: us-central1-b has no g2-standard-8: take of us-central1-a, us-central1-c" in sentence


def test_a_zone_without_the_rdma_profile(gcp: StandIn, mine: Deployment) -> None:  # noqa: F811
    gcp.offer("a4-highgpu-8g", zones=["us-central1-a", "us-central1-b"])
    (sentence,) = said(mine, instance="a4-highgpu-8g", market="spot", zones=["us-central1-a"])
    assert "us-central1-a has no network profile for RDMA" in sentence
    assert "take of us-central1-b" in sentence


def test_quota_zero_in_both_pools(gcp: StandIn, mine: Deployment) -> None:  # noqa: F811
    gcp.set_quota("NVIDIA_L4_GPUS", 0, region="us-central1")
    gcp.set_quota("PREEMPTIBLE_NVIDIA_L4_GPUS", 0, region="us-central1")
    (sentence,) = said(mine)
    assert "2 × g2-standard-8 need 2 GPUs in us-central1" in sentence
    assert "0 of 0 are free of NVIDIA_L4_GPUS (on-demand pool)" in sentence
    assert "0 of 0 are free of PREEMPTIBLE_NVIDIA_L4_GPUS (spot and flex-start pool)" in sentence
    assert "raise NVIDIA_L4_GPUS to 2" in sentence


def test_a_lifetime_above_seven_days_may_not_take_from_the_other_pool(
    gcp: StandIn,  # noqa: F811
    mine: Deployment,
) -> None:
    gcp.set_quota("NVIDIA_L4_GPUS", 1, region="us-central1")
    assert said(mine, max_lifetime="7d") == []
    (sentence,) = said(mine, max_lifetime="8d")
    assert "1 of 1 are free of NVIDIA_L4_GPUS" in sentence


def test_a_spot_quota_short_by_one(gcp: StandIn, mine: Deployment) -> None:  # noqa: F811
    gcp.set_quota("PREEMPTIBLE_NVIDIA_L4_GPUS", 7, region="us-central1")
    (sentence,) = said(mine, nodes=8, market="spot")
    assert "7 of 7 are free of PREEMPTIBLE_NVIDIA_L4_GPUS" in sentence
    assert said(mine, nodes=7, market="spot") == []


def test_the_quota_of_a_family_is_in_another_api(gcp: StandIn, mine: Deployment) -> None:  # noqa: F811
    gcp.set_quota("family/NVIDIA_H100", 15, region="us-central1")
    (sentence,) = said(mine, instance="a3-highgpu-8g", max_lifetime="10d")
    assert "need 16 GPUs" in sentence
    assert "15 of 15 are free of gpus_per_gpu_family with gpu_family NVIDIA_H100 (on-demand pool)" in sentence


def test_a_family_quota_that_cant_be_read_is_told_and_refuses_nothing(
    gcp: StandIn,  # noqa: F811
    mine: Deployment,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gcp.switch_api("cloudquotas", on=False)
    assert said(mine, instance="a3-highgpu-8g", max_lifetime="10d") == []
    assert "gpus_per_gpu_family/NVIDIA_H100 of us-central1 could not be checked" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("metric", "limit", "region", "key"),
    [
        ("INSTANCES", 1, "us-central1", "nodes"),
        ("SSD_TOTAL_GB", 399, "us-central1", "disk_gib"),
        ("NETWORKS", 0, "", "instance"),
        ("GPUS_ALL_REGIONS", 1, "", "nodes"),
    ],
)
def test_other_quotas(
    gcp: StandIn,  # noqa: F811
    mine: Deployment,
    metric: str,
    limit: float,
    region: str,
    key: str,
) -> None:
    gcp.set_quota(metric, limit, region=region)
    (sentence,) = said(mine)
    assert f"are needed of {metric} in " in sentence
    assert f"key trainstack:cluster.{key}" in sentence


def test_machines_of_ours_that_run_arent_needed_again(gcp: StandIn, mine: Deployment) -> None:  # noqa: F811
    _running(gcp, mine)
    gcp.set_quota("PREEMPTIBLE_NVIDIA_L4_GPUS", 0, region="us-central1")
    gcp.set_quota("NVIDIA_L4_GPUS", 2, region="us-central1")
    assert said(mine) == []
    (sentence,) = said(mine, nodes=3)
    assert "2 × g2-standard-8 need 2 GPUs" in sentence
    assert "1 of 2 are free" in sentence


def test_another_checkouts_machines_under_the_same_name(
    gcp: StandIn,  # noqa: F811
    mine: Deployment,
    tmp_path: Path,
) -> None:
    _running(gcp, deployment(tmp_path / "theirs"))
    (sentence,) = said(mine)
    assert "another checkout made" in sentence
    assert "node-0" in sentence
    assert said(deployment(mine.root, "another")) == []


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"image": "projects/ubuntu-os-cloud/global/images/family/ubuntu-9"}, "its family is empty"),
        ({"image": "nothing-of-that-name"}, f"gcloud compute images list --project {PROJECT}"),
    ],
)
def test_an_image_that_isnt_there(gcp: StandIn, mine: Deployment, keys: dict[str, Any], words: str) -> None:  # noqa: F811
    del gcp
    (sentence,) = said(mine, **keys)
    assert words in sentence


def test_reservations(gcp: StandIn, mine: Deployment) -> None:  # noqa: F811
    (sentence,) = said(mine, reservation="ours")
    assert "cluster.reservation: ours isn't there in us-central1" in sentence
    client = api.connect(mine)
    body = {
        "name": "ours",
        "specificReservationRequired": True,
        "specificReservation": {"count": "2", "instanceProperties": {"machineType": "a4-highgpu-8g"}},
    }
    path = f"projects/{PROJECT}/zones/us-central1-b/reservations"
    client.wait(client.insert(path, body, doing="", request_id=str(uuid.uuid4())), doing="")
    assert said(mine, reservation="ours", instance="a4-highgpu-8g") == []
    assert "is of a4-highgpu-8g, not of g2-standard-8" in said(mine, reservation="ours")[-1]
    assert (
        "has 2 machines free in us-central1-b, and 3"
        in said(mine, reservation="ours", instance="a4-highgpu-8g", nodes=3)[-1]
    )
    assert gcp.calls("compute.reservations.insert")


def _running(gcp: StandIn, whose: Deployment) -> None:  # noqa: F811
    machines = GcpMachines(whose, api.connect(whose), wish=clouds_wish(gcp, whose), places={}, pinned=PINNED)
    machines.launch(order(now=datetime.now(UTC)))
