"""`leftovers` and `remove` against the stand-in: everything that bears the stack's name, from the API alone."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from infra import leftovers
from infra.errors import AccessError, LeftoversError, ProviderError
from infra.providers.base import Deployment, IncompleteError
from infra.providers.gcp import PROVIDER, api, names
from infra.providers.gcp.machines import GcpMachines
from tests.infra.gcp.asking import PINNED, clouds_wish, deployment, order
from tests.stand_ins.gcp.client import PROJECT, StandIn
from tests.stand_ins.gcp.fixtures import gcp, gcp_key  # noqa: F401

REGION, ZONE = "regions/us-central1", "zones/us-central1-a"
Compute = Callable[[str, dict[str, Any]], None]


@pytest.fixture(autouse=True)
def _no_waiting(gcp: StandIn, mine: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811, ARG001
    monkeypatch.setattr(api.connect(mine), "sleep", lambda _: None)


def everything(gcp: StandIn, whose: Deployment) -> None:  # noqa: F811
    """One of each kind, as a killed `pulumi up` may leave it."""
    client = api.connect(whose)
    wish = clouds_wish(gcp, whose)
    machines = GcpMachines(whose, client, wish=wish, places={}, pinned=PINNED)
    for number in range(2):
        machines.launch(order(f"node-{number}", now=datetime.now(UTC)))
    marks = {"name": names.name(whose, "x"), "description": names.description(whose)}
    network = f"projects/{PROJECT}/global/networks/{names.name(whose, 'net-0')}"
    for where, body in {
        f"{REGION}/addresses": marks,
        f"{REGION}/resourcePolicies": {**marks, "groupPlacementPolicy": {"collocation": "COLLOCATED"}},
        f"{REGION}/routers": {**marks, "network": network},
        "global/firewalls": {
            **marks,
            "network": network,
            "sourceRanges": ["10.64.0.0/20"],
            "allowed": [{"IPProtocol": "tcp"}],
        },
        f"{ZONE}/disks": {
            **marks,
            "labels": names.labels(whose),
            "sizeGb": "10",
            "type": f"projects/{PROJECT}/{ZONE}/diskTypes/pd-balanced",
        },
        f"{ZONE}/reservations": {
            **marks,
            "specificReservation": {"count": "1", "instanceProperties": {"machineType": "g2-standard-8"}},
        },
    }.items():
        operation = client.insert(f"projects/{PROJECT}/{where}", body, doing=where, request_id=str(uuid.uuid4()))
        client.wait(operation, doing=where)
    _others(client, whose, network)


def _others(client: api.Client, whose: Deployment, network: str) -> None:
    """Filestore, bucket and account, over the same session."""

    def make(service: Any, path: str, body: dict[str, Any], **parameters: str) -> dict[str, Any]:
        return client._ask("POST", path, doing=path, service=service, parameters=parameters, body=body)

    store = {
        "tier": "ZONAL",
        "labels": names.labels(whose),
        "fileShares": [{"name": "shared", "capacityGb": "1024"}],
        "networks": [{"network": network, "modes": ["MODE_IPV4"]}],
    }
    path = f"projects/{PROJECT}/locations/us-central1-a/instances"
    client.wait_for_file(make("filestore", path, store, instanceId=names.name(whose, "shared")), doing="")
    bucket = {"name": names.bucket(whose), "labels": names.labels(whose), "location": "US-CENTRAL1"}
    make("storage", "b", bucket, project=PROJECT)
    account = {"accountId": names.service_account(whose), "serviceAccount": {"description": names.description(whose)}}
    make("iam", f"projects/{PROJECT}/serviceAccounts", account)


KINDS = [
    *("instance", "Filestore", "disk", "address", "reservation", "placement policy", "router with NAT", "bucket"),
    *("service account", "firewall", "subnetwork", "network"),
]


def test_everything_is_found_and_removed_in_order(gcp: StandIn, mine: Deployment) -> None:  # noqa: F811
    everything(gcp, mine)
    gcp.put_object(names.bucket(mine), "runs/1/a file.pt")
    found = PROVIDER.leftovers(mine)
    assert list(dict.fromkeys(each.kind for each in found)) == KINDS
    assert len(found) == len(gcp.leftovers())
    assert all(each.is_ours for each in found)
    assert [each.kind for each in found if each.is_machine] == ["instance"] * 2
    for each in found:
        PROVIDER.remove(each, mine)
    assert gcp.leftovers() == []
    for each in found:
        PROVIDER.remove(each, mine)  # what isn't there has ended


def test_what_it_costs_is_told(gcp: StandIn, mine: Deployment) -> None:  # noqa: F811
    everything(gcp, mine)
    costs = {each.kind: each.usd_per_hour for each in PROVIDER.leftovers(mine)}
    assert costs["network"] == costs["firewall"] == 0.0
    assert costs["instance"] is not None
    assert costs["instance"] > 0.5
    assert costs["disk"] is not None
    assert costs["disk"] > 0
    assert costs["bucket"] is None


def test_nothing_of_other_stacks(gcp: StandIn, mine: Deployment) -> None:  # noqa: F811
    everything(gcp, deployment(mine.root, "gcp-2"))
    everything(gcp, deployment(mine.root, "gc"))
    assert PROVIDER.leftovers(mine) == []


def test_another_checkouts_are_told_and_arent_ours(gcp: StandIn, mine: Deployment, tmp_path: Path) -> None:  # noqa: F811
    everything(gcp, deployment(tmp_path / "theirs"))
    found = PROVIDER.leftovers(mine)
    assert list(dict.fromkeys(each.kind for each in found)) == KINDS
    assert not [each for each in found if each.is_ours]


@pytest.mark.parametrize("how", ["malformed", "empty"])
@pytest.mark.parametrize(
    "method", ["compute.instances.aggregatedList", "compute.networks.list", "compute.disks.aggregatedList"]
)
def test_an_answer_that_is_none_isnt_nothing(gcp: StandIn, mine: Deployment, method: str, how: Any) -> None:  # noqa: F811
    gcp.spoil(method, how)
    with pytest.raises(ProviderError, match="can't be used"):
        PROVIDER.leftovers(mine)


def test_apis_that_are_off_hide_nothing(gcp: StandIn, mine: Deployment) -> None:  # noqa: F811
    for name in ("file", "storage", "iam"):
        gcp.switch_api(name, on=False)
    assert PROVIDER.leftovers(mine) == []


def test_rights_to_machines_alone_are_enough_unless_storage_was_asked_for(
    gcp: StandIn,  # noqa: F811
    mine: Deployment,
) -> None:
    gcp.deny("file.*", permission="file.instances.list")
    assert PROVIDER.leftovers(mine) == []
    marker = mine.storage_marker
    marker.parent.mkdir(parents=True)
    marker.touch()
    with pytest.raises(IncompleteError, match=r"file\.instances\.list") as error:
        PROVIDER.leftovers(mine)
    assert error.value.exit_code == AccessError.exit_code


def test_a_network_that_is_in_use_for_a_while(gcp: StandIn, mine: Deployment) -> None:  # noqa: F811
    clouds_wish(gcp, mine)
    gcp.keep_in_use("compute.networks.delete", times=3)
    for each in PROVIDER.leftovers(mine):
        PROVIDER.remove(each, mine)
    assert gcp.leftovers() == []


def test_a_network_that_stays_in_use_is_said_with_what_holds_it(
    gcp: StandIn,  # noqa: F811
    mine: Deployment,
) -> None:
    _stack_file(mine)
    clouds_wish(gcp, mine)
    gcp.keep_in_use("compute.networks.delete", times=None)
    with pytest.raises(LeftoversError, match="someone-elses"):
        leftovers.sweep(mine.root, mine.stack)
    gcp.clear_failures()
    leftovers.sweep(mine.root, mine.stack)
    assert gcp.leftovers() == []


def test_the_sweep_leaves_another_checkouts_alone(
    gcp: StandIn,  # noqa: F811
    mine: Deployment,
    tmp_path: Path,
) -> None:
    _stack_file(mine)
    everything(gcp, deployment(tmp_path / "theirs"))
    before = gcp.leftovers()
    leftovers.sweep(mine.root, mine.stack)
    assert gcp.leftovers() == before
    leftovers.sweep_all(mine.root, mine.stack)
    assert gcp.leftovers() == []


def test_a_500_during_the_removal(gcp: StandIn, mine: Deployment) -> None:  # noqa: F811
    everything(gcp, mine)
    gcp.fail("*.delete", code=500, times=3)
    for each in PROVIDER.leftovers(mine):
        PROVIDER.remove(each, mine)
    assert gcp.leftovers() == []


def _stack_file(mine: Deployment) -> None:
    mine.stack_file.parent.mkdir(exist_ok=True)
    mine.stack_file.write_text("config: {'trainstack:cluster': {provider: gcp}}")
