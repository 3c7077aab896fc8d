"""Contract 1: there and back through JSON, and what isn't a Cluster."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from infra import cost
from infra.cluster import VERSION, Cluster, Endpoint, Node, Price
from infra.errors import ContractError, SpecError
from infra.spec import parse

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def node(rank: int, **changes: Any) -> Node:
    values: dict[str, Any] = {
        "name": f"node-{rank}",
        "provider_id": f"id-{rank}",
        "rank": rank,
        "public": Endpoint(host="192.0.2.1", port=2200) if rank == 0 else None,
        "private": Endpoint(host=f"10.0.0.{rank + 1}"),
        "user": "root",
        "host_key": f"ssh-ed25519 AAAA{rank}",
        "work_dir": "/home/ü x/work",
        "processes": 2,
        "cpu_threads": 1,
    }
    return Node(**{**values, **changes})


def cluster(*nodes: Node, **changes: Any) -> Cluster:
    values: dict[str, Any] = {
        "version": VERSION,
        "project": "trainstack",
        "stack": "local",
        "provider": "local",
        "region": None,
        "zone": None,
        "created_at": NOW,
        "expires_at": NOW + timedelta(hours=24),
        "price": Price(usd_per_hour=2.0, source="catalogue", as_of=NOW),
        "shared_storage": None,
        "nodes": nodes or (node(0), node(1)),
    }
    return Cluster(**{**values, **changes})


def test_a_cluster_survives_json_both_ways() -> None:
    before = cluster()
    assert Cluster.from_json(json.loads(json.dumps(before.to_json()))) == before
    assert before.world_size == 4
    assert before.head.is_head
    assert before.node("node-1").rank == 1


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([node(1)], "ranks"),
        ([node(1), node(0)], "ranks"),
        ([node(0), node(1, name="node-0")], "one name"),
        ([node(0), node(1, host_key="ssh-ed25519 AAAA0")], "one host key"),
        ([node(0, public=None)], "no public address"),
        ([node(0), node(1, private=Endpoint(host="node-1"))], "not an IP address"),
    ],
)
def test_a_gang_that_does_not_hang_together_is_no_cluster(nodes: list[Node], said: str) -> None:
    with pytest.raises(ContractError, match=said):
        cluster(*nodes)


def test_another_version_a_missing_key_and_an_extra_key_are_told_in_one_sentence() -> None:
    good = cluster().to_json()
    for bad in [{**good, "version": 99}, {key: good[key] for key in good if key != "price"}, {**good, "more": 1}, None]:
        with pytest.raises(ContractError) as caught:
            Cluster.from_json(bad)
        assert "\n" not in str(caught.value)


def test_a_name_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(ContractError, match="node-0, node-1"):
        cluster().node("node-7")


def test_the_receipt_stops_counting_when_the_guard_ended_the_nodes() -> None:
    assert "for 1800 s" in cost.receipt(cluster(), ended_at=NOW + timedelta(minutes=30))
    late = cost.receipt(cluster(), ended_at=NOW + timedelta(days=9))
    assert "for 86400 s at $2.00 per hour = $48.00 (catalogue" in late


@pytest.mark.parametrize(
    ("rest", "told"),
    [
        (0.05, "for 86400 s at $2.00 per hour, and what the guard doesn't end for 36000 s at $0.0500 = $48.50 ("),
        (None, "for 86400 s at $2.00 per hour, and what the guard doesn't end for 36000 s at unknown = unknown ("),
    ],
)
def test_the_receipt_counts_on_what_the_guard_does_not_end(rest: float | None, told: str) -> None:
    price = dataclasses.replace(cluster().price, usd_per_hour_after_guard=rest)
    assert told in cost.receipt(cluster().replace(price=price), ended_at=NOW + timedelta(hours=34))
    assert "guard" not in cost.receipt(cluster().replace(price=price), ended_at=NOW + timedelta(hours=24))


def test_an_unknown_price_is_never_zero_and_never_under_a_cap() -> None:
    unknown = Price(usd_per_hour=None, source="no offer found", as_of=NOW)
    spec = parse({"provider": "local", "max_hourly_usd": 1.0}, file="f")
    known = cost.Line(what="2 nodes", usd_per_hour=2.0, source="catalogue", as_of=NOW)
    lines = [known, cost.Line(what="an address", usd_per_hour=None, source="no offer found", as_of=NOW)]
    assert cost.total(lines).usd_per_hour is None
    assert cost.estimate(spec, lines).startswith("estimated cost: unknown per hour, at most unknown")
    with pytest.raises(SpecError, match="price is unknown"):
        cost.refuse_above_cap(spec, unknown, file="f")
    with pytest.raises(SpecError, match=r"costs \$2\.00 per hour"):
        cost.refuse_above_cap(spec, cluster().price, file="f")
    cost.refuse_above_cap(parse({"provider": "local"}, file="f"), unknown, file="f")
