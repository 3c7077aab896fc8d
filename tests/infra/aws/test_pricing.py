"""What a cluster on AWS costs: live where AWS tells, else the catalogue, and unknown is never nothing."""

from __future__ import annotations

from typing import Any

import pytest

from infra import cost, prices
from infra.cost import Line
from infra.errors import SpecError
from infra.providers.aws import PROVIDER, pricing
from tests.infra.aws.asking import FILE, asked
from tests.stand_ins.aws.client import StandIn


def lines(**keys: Any) -> dict[str, Line]:
    """By the first words of what bills."""
    return {line.what: line for line in PROVIDER.price(asked(**keys))}


def one(found: dict[str, Line], words: str) -> Line:
    (line,) = [line for what, line in found.items() if words in what]
    return line


def test_the_price_list_s_own_price_is_taken_with_today_s_date(aws: StandIn) -> None:
    aws.price("p5.48xlarge", 50.0)
    machines = one(lines(), "p5.48xlarge")
    assert machines.usd_per_hour == 100.0
    assert machines.what == "2 × p5.48xlarge (on-demand, us-east-1)"
    assert machines.source == "AWS's price list"


def test_the_price_of_the_region_counts(aws: StandIn) -> None:
    aws.price("p5.48xlarge", 50.0)
    aws.price("p5.48xlarge", 70.0, region="us-west-2")
    assert one(lines(region="us-west-2"), "p5.48xlarge").usd_per_hour == 140.0


def test_spot_is_counted_at_the_dearest_zone(aws: StandIn) -> None:
    aws.spot_price("p5.48xlarge", 9.0, zone="us-east-1a")
    aws.spot_price("p5.48xlarge", 11.0, zone="us-east-1b")
    machines = one(lines(market="spot"), "p5.48xlarge")
    assert (machines.usd_per_hour, machines.source) == (22.0, "AWS's spot price history")


@pytest.mark.parametrize("market", ["on-demand", "spot"])
def test_where_pricing_is_denied_the_catalogue_is_asked(aws: StandIn, market: Any) -> None:
    for operation in ("GetProducts", "DescribeSpotPriceHistory"):
        aws.fail(operation, "AccessDeniedException", message="not authorized")
    known = prices.machine("aws", region="us-east-1", instance="p5.48xlarge", market=market)
    assert known is not None
    machines = one(lines(market=market), "p5.48xlarge")
    assert (machines.usd_per_hour, machines.source, machines.as_of) == (2 * known.usd, known.source, known.as_of)


@pytest.mark.usefixtures("aws")
def test_unknown_stays_unknown_and_a_cap_then_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "machine", lambda *_, **__: None)
    spec = asked(max_hourly_usd=1000.0)
    price = cost.total(PROVIDER.price(spec))
    assert price.usd_per_hour is None
    assert one(lines(), "p5.48xlarge").source == "no price known for p5.48xlarge in us-east-1, on-demand"
    with pytest.raises(SpecError, match=r"max_hourly_usd is \$1000.00, but the price is unknown"):
        cost.refuse_above_cap(spec, price, file=FILE)
    assert "unknown per hour" in cost.estimate(spec, PROVIDER.price(spec))


def test_a_cap_is_held_against_the_whole_and_not_the_machines_alone(aws: StandIn) -> None:
    aws.price("p5.48xlarge", 50.0)
    spec = asked(max_hourly_usd=100.0)
    with pytest.raises(SpecError, match=r"\$100.00, but this cluster costs \$100.10 per hour"):
        cost.refuse_above_cap(spec, cost.total(PROVIDER.price(spec)), file=FILE)


@pytest.mark.usefixtures("aws")
def test_all_that_bills_has_its_line() -> None:
    found = lines(nodes=4, disk_gib=500)
    assert one(found, "gp3").what == "4 root disk(s), 2000 GiB of gp3"
    assert one(found, "gp3").usd_per_hour == pytest.approx(0.08 * 2000 / 730)
    assert one(found, "public address").usd_per_hour == pytest.approx(2 * 0.005)
    nat = one(found, "NAT gateway")
    assert (nat.usd_per_hour, nat.per_use) == (0.045, "and $0.045 per GB through it")
    assert len(found) == 4


@pytest.mark.usefixtures("aws")
@pytest.mark.parametrize("keys", [{"nodes": 1}, {"egress": "endpoints"}])
def test_without_nat_there_is_one_address(keys: dict[str, Any]) -> None:
    found = lines(**keys)
    assert not [what for what in found if "NAT" in what]
    assert one(found, "public address").usd_per_hour == pytest.approx(0.005)


@pytest.mark.usefixtures("aws")
def test_storage_bills_what_is_set_up_or_what_is_used() -> None:
    lustre = one(lines(storage={"kind": "lustre", "size_gib": 1200}), "Lustre")
    assert lustre.usd_per_hour == pytest.approx(0.14 * 1200 / 730)
    efs, s3 = (one(lines(storage={"kind": kind}), "empty") for kind in ("nfs", "bucket"))
    assert [(each.what, each.usd_per_hour) for each in (efs, s3)] == [("EFS, empty", 0.0), ("S3 bucket, empty", 0.0)]
    assert (efs.per_use, s3.per_use) == ("and $0.3 per GiB and month in it", "and $0.023 per GiB and month in it")


@pytest.mark.usefixtures("aws")
def test_a_price_that_the_catalogue_lacks_is_unknown_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "other", lambda *_: None)
    found = lines(storage={"kind": "lustre", "size_gib": 1200})
    assert [line.usd_per_hour for line in found.values()][1:] == [None] * 4
    assert "at a price that isn't known" in one(lines(storage={"kind": "nfs"}), "EFS").per_use


@pytest.mark.usefixtures("aws")
def test_a_reservation_says_that_it_bills_to_its_end() -> None:
    machines = one(lines(reservation="cr-0123456789abcdef0"), "p5.48xlarge")
    assert "bills until its end, used or not; a capacity block can't be given back" in machines.per_use


@pytest.mark.parametrize("products", [[], ["{}"], ["{}", "{}"], [{"terms": {}}]])
def test_a_price_list_without_a_price_is_not_a_price(products: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pricing.api, "pages", lambda *_, **__: iter(products))
    assert pricing._on_demand("us-east-1", "p5.48xlarge") is None
