"""What a cluster costs: each line, the sum, what is unknown, and the cap."""

from __future__ import annotations

from datetime import timedelta

import pytest

from infra import cost
from infra.cluster import Price
from infra.cost import Line
from infra.errors import SpecError
from infra.spec import ClusterSpec, parse
from tests.infra.in_memory_cloud import NOW

MACHINES = Line(what="2 × big-one", usd_per_hour=110.08, source="list price", as_of=NOW)
ADDRESS = Line(
    what="1 address",
    usd_per_hour=0.005,
    source="price page",
    as_of=NOW - timedelta(days=90),
    outlives_guard=True,
)
GATEWAY = Line(
    what="1 NAT gateway", usd_per_hour=0.045, source="price page", as_of=NOW, per_use="and $0.045 per GB through it"
)
UNKNOWN = Line(what="storage", usd_per_hour=None, source="no offer found", as_of=NOW - timedelta(days=1))


def spec(**keys: object) -> ClusterSpec:
    return parse({"provider": "local", "max_lifetime": "2h", **keys}, file="f")


def test_the_sum_is_of_all_lines_and_names_the_dearest() -> None:
    total = cost.total([ADDRESS, MACHINES, GATEWAY])
    assert total.usd_per_hour == pytest.approx(110.13)
    assert (total.source, total.as_of) == ("list price, and 2 smaller one(s)", NOW)


def test_one_line_is_its_own_sum() -> None:
    assert cost.total([ADDRESS]) == Price(
        usd_per_hour=0.005, source="price page", as_of=ADDRESS.as_of, usd_per_hour_after_guard=0.005
    )


@pytest.mark.parametrize("lines", [[UNKNOWN], [UNKNOWN, MACHINES], [MACHINES, UNKNOWN]])
def test_one_unknown_makes_the_sum_unknown_and_is_what_it_names(lines: list[Line]) -> None:
    total = cost.total(lines)
    assert total.usd_per_hour is None
    assert total.source.startswith("no offer found")
    assert total.as_of == UNKNOWN.as_of
    assert cost.total_usd(total, seconds=3600) is None


def test_nothing_is_zero_and_no_unknown() -> None:
    free = Line(what="2 nodes", usd_per_hour=0.0, source="your own machine", as_of=NOW)
    assert cost.total([free]).usd_per_hour == 0.0
    assert cost.total_usd(cost.total([free]), seconds=1e6) == 0.0
    assert "$0.00 per hour  2 nodes" in cost.estimate(spec(), [free])


def test_the_estimate_has_the_whole_the_most_and_each_line_with_source_and_age() -> None:
    whole, *lines = cost.estimate(spec(), [MACHINES, ADDRESS, GATEWAY]).splitlines()
    assert whole == (
        "estimated cost: $110.13 per hour, at most $220.26 until the guard ends the nodes 2 h after creation, "
        "and $0.0050 per hour after that, until `make destroy`"
    )
    assert [line.strip() for line in lines] == [
        "$110.08 per hour  2 × big-one (list price, as of 2026-03-01)",
        "$0.0050 per hour  1 address (price page, as of 2025-12-01); until `make destroy`",
        "$0.0450 per hour  1 NAT gateway (price page, as of 2026-03-01); and $0.045 per GB through it",
    ]


def test_an_estimate_with_an_unknown_says_so_and_keeps_what_is_known() -> None:
    whole, first, second = cost.estimate(spec(), [MACHINES, UNKNOWN]).splitlines()
    assert "unknown per hour, at most unknown" in whole
    assert "$110.08" in first
    assert second.split()[0] == "unknown"


@pytest.mark.parametrize(("cap", "refused"), [(110.07, True), (110.08, False), (200.0, False), (None, False)])
def test_the_cap_is_the_most_that_passes(cap: float | None, refused: bool) -> None:
    asked = spec() if cap is None else spec(max_hourly_usd=cap)
    if not refused:
        cost.refuse_above_cap(asked, cost.total([MACHINES]), file="stacks/Pulumi.s.yaml")
        return
    with pytest.raises(SpecError) as error:
        cost.refuse_above_cap(asked, cost.total([MACHINES]), file="stacks/Pulumi.s.yaml")
    for part in ("stacks/Pulumi.s.yaml", "max_hourly_usd is $110.07", "costs $110.08 per hour", "raise the cap"):
        assert part in str(error.value)


def test_under_a_cap_an_unknown_price_is_refused_with_what_is_unknown() -> None:
    with pytest.raises(SpecError, match=r"the price is unknown \(no offer found.*remove the cap"):
        cost.refuse_above_cap(spec(max_hourly_usd=1000), cost.total([MACHINES, UNKNOWN]), file="f")
    cost.refuse_above_cap(spec(), cost.total([MACHINES, UNKNOWN]), file="f")
