"""What is wrong is said before anything is made: by the stack file, and by what Vast.ai's API tells; the price."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra import cost, label
from infra.errors import AccessError, CapacityError, ProviderError
from infra.providers.base import Deployment
from infra.providers.vast import PROVIDER, api, leftovers, plan, preflight, pricing
from infra.providers.vast.api import Vast
from tests.infra.vast.asking import asked, machines, order, wish
from tests.stand_ins.vast.server import KEY, StandIn

KEYS = "stacks/Pulumi.vast.yaml, key trainstack:cluster"


def said(mine: Deployment, **keys: Any) -> list[str]:
    return preflight.problems(asked(**keys), mine)


# Before the API


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"gpus": None}, f"{KEYS}.gpus: there are none: write the model and the number in the machine, as in `gpus: H"),
        ({"gpus": "H100"}, f"{KEYS}.gpus: GPUs 'H100' are not MODEL:COUNT"),
        ({"gpus": "V100:8"}, f"{KEYS}.gpus: no GPU of Vast.ai is V100 here: take one of A10, A40"),
        ({"gpus": "H100:32"}, f"{KEYS}.gpus: H100:32 is more than the 16 that one machine of Vast.ai has"),
        ({"nodes": 2}, f"{KEYS}.nodes is 2: write `nodes: 1`, because Vast.ai's API doesn't tell at what address"),
        ({"processes_per_node": 9}, f"{KEYS}.processes_per_node is 9, and 8 × H100 has 8 GPU"),
        ({"market": "flex-start"}, f"{KEYS}.market is 'flex-start': Vast.ai has on-demand and spot"),
        ({"region": "us-east-1"}, f"{KEYS}.region is 'us-east-1': write a country as two capital letters"),
        ({"disk_gib": 4}, f"{KEYS}.disk_gib is 4: take between 8 and 16384"),
    ],
)
def test_wrong_keys_are_named(cloud: StandIn, mine: Deployment, keys: dict[str, Any], told: str) -> None:
    (line,) = said(mine, **keys)
    assert line.startswith(told)
    assert cloud.calls == []


def test_a_stack_whose_name_does_not_fit_the_label_is_told(cloud: StandIn, root: Path) -> None:
    longest = Deployment(root=root, stack="x" * 128)
    assert label.problems(longest, longest=256, provider="Vast.ai") == []
    assert len(label.text(longest, node="node-0", token="0" * 32, zone=plan.ANYWHERE)) <= 256
    (line,) = preflight.problems(asked(), Deployment(root=root, stack="x" * 128, project="p" * 64))
    assert "is longer than Vast.ai's 256" in line
    assert cloud.calls == []


def test_without_a_key_it_is_said_where_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(api.KEY_VARIABLE, raising=False)
    files = (tmp_path / "new", tmp_path / "old")
    monkeypatch.setattr(api, "KEY_FILES", files)
    with pytest.raises(AccessError, match=r"^no key for Vast.ai: make one at cloud.vast.ai/manage-keys and set VAST_A"):
        api.connect()
    files[1].write_text("of-the-old-file\n")
    assert isinstance(api.connect(), Vast)


# By the API


def test_what_can_be_had_is_not_refused_and_nothing_is_made(cloud: StandIn, mine: Deployment) -> None:
    cloud.offer()
    assert said(mine) == said(mine, market="spot") == said(mine, region="US") == said(mine, gpus="h100:8") == []
    assert {method for method, _ in cloud.calls} == {"GET", "POST"}
    assert cloud.instances == {}


def test_no_offer_is_told_but_not_to_a_machine_that_runs(cloud: StandIn, client: Vast, mine: Deployment) -> None:
    cloud.offer()
    (line,) = said(mine, region="SE")
    assert line.startswith("Vast.ai has no on-demand offer of 8 × H100 with 200 GiB of disk in SE from a verified")
    machines(client, mine).launch(order())
    assert said(mine, region="SE") == []


def test_a_wrong_key_is_told_once_and_never_printed(cloud: StandIn, mine: Deployment) -> None:
    cloud.key = "another"
    (line,) = said(mine)
    assert line.startswith("Vast.ai's instances: Invalid user key (auth_error): look at the key in VAST_API_KEY")
    assert KEY not in line


def test_a_search_that_refuses_the_key_as_not_found_says_so(cloud: StandIn, client: Vast) -> None:
    cloud.key = "another"
    with pytest.raises(AccessError, match=r"^Vast.ai's offers: Invalid user key"):
        client.search({})


def test_a_colleagues_machine_under_the_same_name_is_told_and_left_alone(
    cloud: StandIn, client: Vast, mine: Deployment, tmp_path: Path
) -> None:
    cloud.offer()
    id_ = machines(client, Deployment(root=tmp_path, stack="vast")).launch(order())
    (line,) = said(mine)
    assert f"another checkout made ({id_})" in line
    (found,) = leftovers.find(mine, client)
    assert (found.id, found.is_ours, found.is_machine) == (id_, False, True)
    assert cloud.billing() == [id_]


# The price


def test_the_price_is_that_of_the_cheapest_offer_with_its_disk_and_its_traffic(cloud: StandIn) -> None:
    cloud.offer(dph_base=15.0, storage_cost=10.0)
    cloud.offer()
    gpus, disk = PROVIDER.price(asked())
    assert (gpus.usd_per_hour, disk.usd_per_hour) == (16.0, pytest.approx(0.05))
    assert (gpus.what, disk.what) == ("8 × H100 on demand in Iowa, US", "200 GiB of disk")
    assert gpus.per_use == "and $0.002 per GB that comes in, $0.004 per GB that goes out"
    assert gpus.source == "Vast.ai's offers"
    estimate = cost.estimate(asked(max_lifetime="10h"), [gpus, disk])
    assert estimate.startswith("estimated cost: $16.05 per hour, at most $160.50 until the guard ends the nodes 10 h")
    assert cloud.instances == {}


def test_the_price_of_a_bid_is_what_will_be_bid(cloud: StandIn) -> None:
    cloud.offer()
    gpus, _ = PROVIDER.price(asked(market="spot"))
    assert (gpus.usd_per_hour, gpus.what) == (9.6, "8 × H100 by a bid of $9.60 in Iowa, US")


def test_preflight_and_price_see_the_same_offers(cloud: StandIn, client: Vast) -> None:
    cloud.offer()
    query = plan.query(wish(), lifetime_s=60)
    assert client.offers(query) == client.offers(query)
    assert cloud.calls == [("POST", "/api/v0/bundles/")]


def test_without_an_offer_the_price_is_that_of_the_machine_that_runs_or_unknown(
    cloud: StandIn, client: Vast, mine: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pricing, "project_root", lambda: mine.root)
    assert [line.usd_per_hour for line in PROVIDER.price(asked())] == [None]
    cloud.offer()
    id_ = machines(client, mine).launch(order())
    (line,) = PROVIDER.price(asked())
    assert (line.usd_per_hour, line.what) == (pytest.approx(16.05), f"8 × H100 as it runs ({id_}), disk included")


# Leftovers


def test_leftovers_are_all_in_whatever_state_and_go(cloud: StandIn, client: Vast, mine: Deployment) -> None:
    for _ in range(4):
        cloud.offer()
    ours = machines(client, mine)
    ids = [ours.launch(order(f"node-{rank}", token=f"{rank:032}")) for rank in range(3)]
    cloud.instances[ids[0]].told["actual_status"], cloud.instances[ids[0]].boots = "loading", 99
    cloud.stop(ids[1])
    cloud.instances[ids[2]].told |= {"actual_status": "offline"}
    cloud.instances[machines(client, Deployment(root=mine.root, stack="other")).launch(order())].told["label"] = "mine"
    found = leftovers.find(mine, client)
    assert [each.id for each in found] == ids
    assert [each.usd_per_hour for each in found] == pytest.approx([16.05, 0.05, 0.05])
    assert found[0].detail == "8 × H100 SXM, loading, node-0"
    for each in found:
        leftovers.remove(each, client)
        leftovers.remove(each, client)
    assert leftovers.find(mine, client) == []
    assert len(cloud.billing()) == 1


@pytest.mark.parametrize("body", [b"", b"{}", b'{"instances": null, "next_token": null}', b'{"instances": []}'])
def test_a_list_that_can_not_be_had_is_not_nothing(cloud: StandIn, client: Vast, mine: Deployment, body: bytes) -> None:
    cloud.fail("GET", "/api/v1/instances/", status=200, body=body)
    with pytest.raises(ProviderError, match="so it tells nothing"):
        leftovers.find(mine, client)


def test_a_list_whose_pages_go_round_is_an_error(cloud: StandIn, client: Vast, mine: Deployment) -> None:
    cloud.fail("GET", "/api/v1/instances/", status=200, body=b'{"instances": [], "next_token": "x"}', times=3)
    with pytest.raises(ProviderError, match="the same page comes again"):
        leftovers.find(mine, client)


@pytest.mark.parametrize(
    "change", [{"id": "7"}, {"cur_state": None}, {"label": 7}, {"num_gpus": "8"}, {"dph_total": None}, {"ports": [22]}]
)
def test_a_field_that_changed_its_type_is_an_error(
    cloud: StandIn, client: Vast, mine: Deployment, change: dict[str, Any]
) -> None:
    cloud.offer()
    cloud.boots = 10
    machines(client, mine).launch(order())
    (made,) = cloud.instances.values()
    made.told |= change
    with pytest.raises(ProviderError, match="isn't as its API describes it"):
        leftovers.find(mine, client)


def test_an_offer_that_changed_is_an_error_and_nothing_is_taken(cloud: StandIn, client: Vast, mine: Deployment) -> None:
    cloud.offer(storage_cost=0.18, inet_up_cost="0.004")
    with pytest.raises(ProviderError, match=r"isn't as its API describes it \(offers.0.inet_up_cost"):
        machines(client, mine).launch(order())
    assert cloud.instances == {}


def test_a_market_without_capacity_is_told_by_the_launch_too(client: Vast, mine: Deployment) -> None:
    with pytest.raises(CapacityError, match=r"^Vast.ai has no interruptible offer of 8 × H100"):
        machines(client, mine, market="spot").launch(order())
