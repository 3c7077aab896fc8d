"""What a cluster costs: a line for each thing that bills, from Google's price list where its parts are plain."""

from __future__ import annotations

from typing import Any

import pytest

from infra import cost
from infra.providers.gcp import instances, pricing
from tests.infra.gcp.asking import asked


def sku(description: str, usd: float, *, usage: str = "OnDemand", unit: str = "h", region: str = "us-central1") -> Any:
    rate = {"unitPrice": {"currencyCode": "USD", "units": str(int(usd)), "nanos": round(usd % 1 * 1e9)}}
    return {
        "description": description,
        "category": {"resourceFamily": "Compute", "usageType": usage},
        "serviceRegions": [region, "us-east1"],
        "pricingInfo": [{"pricingExpression": {"usageUnit": unit, "tieredRates": [rate]}}],
    }


SKUS = [
    sku("G2 Instance Core running in Iowa", 0.025),
    sku("G2 Instance Ram running in Iowa", 0.003, unit="GiBy.h"),
    sku("Nvidia L4 GPU running in Iowa", 0.56),
    sku("Spot Preemptible G2 Instance Core running in Iowa", 0.01, usage="Preemptible"),
    sku("Spot Preemptible G2 Instance Ram running in Iowa", 0.001, usage="Preemptible", unit="GiBy.h"),
    sku("Nvidia L4 GPU attached to Spot Preemptible VMs running in Iowa", 0.22, usage="Preemptible"),
    sku("G2 Instance Core running in Frankfurt", 9.0, region="europe-west3"),
    sku("Commitment v1: Nvidia L4 GPU running in Iowa for 1 Year", 0.3, usage="Commit1Yr"),
]
MACHINE = instances.by_name("g2-standard-8")


def test_parts_are_summed_each_in_its_pool() -> None:
    on_demand = pricing.sum_of_parts(SKUS, MACHINE, region="us-central1", market="on-demand")
    assert on_demand == pytest.approx(8 * 0.025 + 32 * 0.003 + 0.56)
    spot = pricing.sum_of_parts(SKUS, MACHINE, region="us-central1", market="spot")
    assert spot == pytest.approx(8 * 0.01 + 32 * 0.001 + 0.22)


@pytest.mark.parametrize(
    "skus",
    [
        SKUS[1:],
        [*SKUS, sku("Nvidia L4 GPU running in Council Bluffs", 0.6)],
        [{**SKUS[0], "pricingInfo": []}, *SKUS[1:]],
        [sku("G2 Instance Core running in Iowa", 0.025, unit="mo"), *SKUS[1:]],
    ],
    ids=["one missing", "two of one", "no price", "by the month"],
)
def test_what_is_not_plain_is_unknown(skus: list[Any]) -> None:
    assert pricing.sum_of_parts(skus, MACHINE, region="us-central1", market="on-demand") is None


def test_flex_start_and_unknown_families_are_unknown() -> None:
    assert pricing.sum_of_parts(SKUS, MACHINE, region="us-central1", market="flex-start") is None
    b200 = instances.by_name("a4-highgpu-8g")
    assert pricing.sum_of_parts(SKUS, b200, region="us-central1", market="spot") is None


@pytest.fixture(autouse=True)
def _no_price_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pricing, "_price_list", list)


def test_everything_that_bills_has_a_line() -> None:
    lines = pricing.lines(asked(instance="a3-highgpu-8g", nodes=4, storage={"kind": "nfs", "size_gib": 1024}))
    whats = " | ".join(line.what for line in lines)
    for word in ("4 × a3-highgpu-8g on demand", "800 GiB of pd-balanced", "64 local SSDs", "NAT for 3", "Filestore"):
        assert word in whats
    assert "the public address of its NAT" in whats
    assert cost.total(lines).usd_per_hour == pytest.approx(sum(line.usd_per_hour or 0 for line in lines))


def test_one_node_or_endpoints_pay_for_no_nat() -> None:
    for keys in ({"nodes": 1}, {"egress": "endpoints"}):
        whats = [line.what for line in pricing.lines(asked(**keys))]
        assert not [what for what in whats if "NAT" in what]
        assert "the public address of its NAT" not in whats


def test_nat_costs_no_more_above_32_machines() -> None:
    def nat(nodes: int) -> float:
        return next(line.usd_per_hour or 0 for line in pricing.lines(asked(nodes=nodes)) if "NAT for" in line.what)

    assert nat(33) == pytest.approx(32 * 0.0014)
    assert nat(40) == nat(64) == pytest.approx(0.044)


def test_unknown_is_never_zero() -> None:
    lines = pricing.lines(asked(market="flex-start"))
    assert lines[0].usd_per_hour is None
    assert cost.total(lines).usd_per_hour is None


def test_live_wins_over_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pricing, "_price_list", lambda: SKUS)
    line = pricing.lines(asked())[0]
    assert line.source == "Google's price list"
    assert line.usd_per_hour == pytest.approx(2 * (8 * 0.025 + 32 * 0.003 + 0.56))
