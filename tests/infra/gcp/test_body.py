"""Names within Google's limits, and what instances.insert is asked for."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from infra.errors import ProviderError
from infra.providers.base import Deployment
from infra.providers.gcp import body, names
from tests.infra.gcp.asking import PINNED, deployment, order, wish
from tests.infra.ordering import NOW, PUBLIC_KEY

STACKS = ["a", "gcp", "J.Doe_x", "A-b", "a_b", "a.b", "_", "x" * 128, "x" * 127 + "y", "goog-le"]
ENDINGS = ["node-63", "roce-northamerica-northeast1-a-7", "within-15", "shared"]
NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


@pytest.mark.parametrize("stack", STACKS)
def test_names_and_labels_fit_whatever_the_stack_is_called(root: Path, stack: str) -> None:
    mine = deployment(root, stack)
    for ending in ENDINGS:
        assert NAME.fullmatch(names.name(mine, ending))
    for key, value in names.labels(mine, node="node-63").items():
        assert re.fullmatch(r"[a-z][_a-z0-9-]{0,62}", key)
        assert re.fullmatch(r"[_a-z0-9-]{0,63}", value)
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]", names.bucket(mine))
    assert "goog" not in names.bucket(mine)
    assert re.fullmatch(r"[a-z][-a-z0-9]{4,28}[a-z0-9]", names.service_account(mine))
    assert len(names.description(mine)) <= 256


def test_no_two_stacks_share_a_name(root: Path) -> None:
    assert len({names.stem(deployment(root, stack)) for stack in STACKS}) == len(STACKS)


def test_whose_it_is_by_label_or_description(mine: Deployment) -> None:
    assert names.owner_of({"labels": names.labels(mine)}) == mine.owner
    assert names.owner_of({"description": names.description(mine)}) == mine.owner
    assert names.owner_of({"description": "of checkout"}) is None


def made(mine: Deployment, name: str = "node-0", **changes: Any) -> dict[str, Any]:
    lifetime_s = changes.pop("lifetime_s", 3600)
    pinned = {**PINNED, **changes.pop("pinned", {})}
    place = changes.pop("place", {})
    return body.instance(
        mine, order(name, lifetime_s=lifetime_s), wish=wish(**changes), place=place, pinned=pinned, now=NOW
    )


def test_the_machine_ends_by_itself_before_the_guard_would_only_switch_it_off(mine: Deployment) -> None:
    for provisioning in ("STANDARD", "SPOT", "FLEX_START"):
        scheduling = made(mine, provisioning=provisioning, wait_s=7200)["scheduling"]
        assert scheduling["maxRunDuration"] == {"seconds": str(3600 - body.EARLIER_S)}
        assert scheduling["instanceTerminationAction"] == "DELETE"
        assert scheduling["onHostMaintenance"] == "TERMINATE"
        assert scheduling["automaticRestart"] is False
        assert scheduling["provisioningModel"] == provisioning


def test_the_deadline_is_the_guards_own(mine: Deployment) -> None:
    assert order(lifetime_s=7200).boot.expires_at == NOW + timedelta(seconds=7200)
    seconds = made(mine, lifetime_s=7200)["scheduling"]["maxRunDuration"]["seconds"]
    assert int(seconds) == 7200 - body.EARLIER_S


def test_a_lifetime_that_is_over_starts_nothing(mine: Deployment) -> None:
    with pytest.raises(ProviderError, match="raise max_lifetime"):
        made(mine, lifetime_s=100)


def test_a_reserved_machine_ends_with_its_reservation(mine: Deployment) -> None:
    machine = made(
        mine,
        provisioning="RESERVATION_BOUND",
        reservation="ours",
        pinned={"placement": "theirs"},
        machine="a4-highgpu-8g",
    )
    assert "maxRunDuration" not in machine["scheduling"]
    assert machine["reservationAffinity"]["consumeReservationType"] == "SPECIFIC_RESERVATION"
    assert machine["reservationAffinity"]["values"] == ["ours"]
    assert machine["resourcePolicies"] == ["theirs"]


def test_a_reservation_without_a_policy_takes_machines_without_one(mine: Deployment) -> None:
    assert "resourcePolicies" not in made(mine, reservation="ours")
    assert made(mine)["resourcePolicies"] == [wish()["placement"]]


def test_nobody_elses_reservation_is_used(mine: Deployment) -> None:
    assert made(mine)["reservationAffinity"] == {"consumeReservationType": "NO_RESERVATION"}


def test_only_the_head_has_a_public_address_and_on_its_first_interface(mine: Deployment) -> None:
    two = [{"network": f"n{number}", "subnetwork": f"s{number}", "kind": "GVNIC"} for number in range(2)]
    head, other = (made(mine, name, interfaces=two)["networkInterfaces"] for name in ("node-0", "node-1"))
    assert ["accessConfigs" in each for each in head] == [True, False]
    assert not any("accessConfigs" in each for each in other)


def test_rdma_interfaces_are_those_of_the_zone_and_come_last(mine: Deployment) -> None:
    place = {"interfaces": [{"network": "roce", "subnetwork": f"r{number}", "kind": "MRDMA"} for number in range(8)]}
    kinds = [each["nicType"] for each in made(mine, place=place)["networkInterfaces"]]
    assert kinds == ["GVNIC"] + ["MRDMA"] * 8


def test_no_credentials_unless_there_is_a_bucket(mine: Deployment) -> None:
    assert "serviceAccounts" not in made(mine)
    (account,) = made(mine, service_account="nodes@p.iam.gserviceaccount.com")["serviceAccounts"]
    assert account["scopes"] == ["https://www.googleapis.com/auth/devstorage.read_write"]


def test_metadata_and_disk(mine: Deployment) -> None:
    machine = made(mine, pinned={"image_gib": 300})
    metadata = {item["key"]: item["value"] for item in machine["metadata"]["items"]}
    assert metadata["user-data"].startswith("#cloud-config")
    assert metadata["ssh-keys"] == f"trainstack:{PUBLIC_KEY}"
    assert metadata["enable-oslogin"] == "FALSE"
    assert metadata["block-project-ssh-keys"] == metadata["enable-guest-attributes"] == "TRUE"
    (disk,) = machine["disks"]
    assert disk["autoDelete"]
    assert disk["initializeParams"]["diskSizeGb"] == "300"  # no smaller than its image
    assert machine["labels"] == {
        "trainstack": names.stem(mine),
        "trainstack_owner": mine.owner,
        "trainstack_node": "node-0",
    }


def test_flex_start_waits_in_googles_queue(mine: Deployment) -> None:
    machine = made(mine, provisioning="FLEX_START", wait_s=7200)
    assert machine["params"] == {"requestValidForDuration": {"seconds": "7200"}}
