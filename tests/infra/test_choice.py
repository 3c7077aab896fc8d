"""From offers and a forecast to rows and a stack file: exact figures, and what is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra import spec
from infra.choice import command, stack_file, table
from infra.choice.assumptions import Assumptions, device
from infra.choice.rows import Candidate, Forecast, Need, Row, candidates, rows, shapes
from infra.errors import SpecError
from tests.infra.offering import NOW, offer

PEAK = 989.4e12
EVEN = Assumptions(mfu=0.5, start_hours=0.0, network_share=1.0)


def need(**changes: Any) -> Need:
    fields: dict[str, Any] = {"strategy": {"name": "fsdp"}, "reason": "it fits", "peak": 2**30, "host": 0, "sent": 0}
    return Need(**{**fields, "moved": 0, "peak_flops": PEAK, **changes})


def forecast(*clusters: Need, flops_per_token: float | None = 8e9) -> Forecast:
    """1000 steps of a million tokens."""
    return Forecast(
        experiment="test",
        parameters=10**9,
        steps=1000,
        tokens=10**9,
        flops_per_token=flops_per_token,
        clusters=clusters,
    )


def candidate(nodes: int = 1, **changes: Any) -> Candidate:
    return Candidate(offer=offer(**changes), nodes=nodes, regions=("us-east-1",))


def test_hours_are_work_over_what_the_gpus_get_done() -> None:
    (row,) = rows([candidate()], forecast(need()), EVEN)
    assert row.hours == pytest.approx(8e9 * 1e9 / (8 * PEAK * 0.5) / 3600)
    assert row.usd == pytest.approx(55.04 * row.hours)
    assert (row.bound, row.peak_gib) == ("computing", 1.0)


def test_a_slow_network_makes_the_step_and_only_between_machines() -> None:
    assumed = Assumptions(mfu=0.5, start_hours=0.0, network_share=0.5, gbit_per_gpu=16.0)
    few = [candidate(nodes) for nodes in (1, 2)]
    one, two = sorted(rows(few, forecast(*[need(sent=10**10)] * 2), assumed), key=lambda row: row.candidate.nodes)
    assert one.bound == "computing"
    assert (two.bound, two.hours) == ("network", pytest.approx(1000 * 10 / 3600))  # 10 GB a step at 1 GB/s


def test_host_memory_can_be_what_is_waited_for_and_is_told() -> None:
    (row,) = rows([candidate()], forecast(need(moved=60 * 10**9, host=2**30)), EVEN)
    assert (row.bound, row.hours, row.host_gib) == ("host memory", pytest.approx(3000 / 3600), 8.0)


def test_spot_loses_time_whenever_it_is_taken_away_and_every_start_is_paid() -> None:
    assumed = Assumptions(mfu=0.5, start_hours=0.25, preempted_every_hours=10.0, lost_hours=1.0)
    demand, spot = rows([candidate(), candidate(market="spot")], forecast(need()), assumed)
    assert spot.hours - 0.25 == pytest.approx((demand.hours - 0.25) * 1.1)


def test_the_cheapest_run_comes_first_and_an_unknown_price_last() -> None:
    found = [candidate(instance="a", usd_per_hour=None), candidate(instance="b", usd_per_hour=9.0), candidate(nodes=2)]
    made = rows(found, forecast(need(), need()), EVEN)
    assert [(row.candidate.offer.instance, row.candidate.nodes) for row in made] == [
        ("b", 1),
        ("p5.48xlarge", 2),
        ("a", 1),
    ]
    assert made[-1].usd is None


@pytest.mark.parametrize(
    ("unfit", "nodes", "network"),
    [
        (need(strategy=None, peak=None), 1, "EFA"),
        (need(peak_flops=None), 1, "EFA"),
        (need(), 2, "none"),
        (need(), 2, "unknown"),
    ],
)
def test_what_can_not_run_or_be_predicted_is_no_row(unfit: Need, nodes: int, network: str) -> None:
    assert rows([candidate(nodes, network=network)], forecast(unfit), EVEN) == []


def test_without_the_models_arithmetic_there_are_no_rows() -> None:
    assert rows([candidate()], forecast(need(), flops_per_token=None), EVEN) == []


def test_of_each_machine_the_cheapest_regions_count() -> None:
    offers = [
        offer(region="us-east-1"),
        offer(region="us-east-2"),
        offer(region="eu-west-1", usd_per_hour=60.0),
        offer(market="spot", usd_per_hour=20.0),
        offer(provider="coreweave", instance="gd-8xh100ib-i128"),
        offer(instance="strange", gpu_model="TPU-v9"),
        offer(instance="pod", most_nodes=1),
        offer(instance="cluster", fewest_nodes=2, most_nodes=8),
    ]
    found = candidates(offers, nodes=(1, 2), providers=["aws"])
    told = {(each.offer.instance, each.offer.market, each.nodes): each.regions for each in found}
    assert told == {
        ("p5.48xlarge", "spot", 1): ("us-east-1",),
        ("p5.48xlarge", "spot", 2): ("us-east-1",),
        ("p5.48xlarge", "on-demand", 1): ("us-east-1", "us-east-2"),
        ("p5.48xlarge", "on-demand", 2): ("us-east-1", "us-east-2"),
        ("pod", "on-demand", 1): ("us-east-1",),
        ("cluster", "on-demand", 2): ("us-east-1",),
    }
    assert len(shapes(found)) == 2  # one H100 machine, or two: the trainer is asked once for each


def test_a_pcie_machine_is_not_taken_for_the_faster_one() -> None:
    assert device(offer(instance="gpu_1x_h100_pcie")) == "NVIDIA H100 PCIe"
    assert device(offer(instance="gpu_1x_h100_sxm5")) == "NVIDIA H100 80GB HBM3"
    assert device(offer(gpu_model="TPU-v9")) is None


def made(**changes: Any) -> Row:
    fields: dict[str, Any] = {"strategy": {"name": "ddp"}, "peak_gib": 40.0, "host_gib": 0.0, "hours": 10.2}
    return Row(**{**fields, "candidate": candidate(2), "usd": 1122.8, "bound": "computing", **changes})


@pytest.mark.parametrize(
    ("row", "config"),
    [
        (
            made(),
            {"provider": "aws", "nodes": 2, "instance": "p5.48xlarge", "region": "us-east-1", "max_hourly_usd": 126.6},
        ),
        (
            made(candidate=candidate(provider="vast", region="US", instance="1234", market="spot", usd_per_hour=10.0)),
            {"provider": "vast", "nodes": 1, "gpus": "H100:8", "market": "spot", "max_hourly_usd": 11.5},
        ),
        (
            made(candidate=candidate(provider="lambda", instance="gpu_8x_h100_sxm5", usd_per_hour=None)),
            {"provider": "lambda", "nodes": 1, "instance": "gpu_8x_h100_sxm5", "region": "us-east-1"},
        ),
    ],
)
def test_the_stack_file_asks_for_the_row_and_is_one_that_pulumi_takes(
    row: Row, config: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "stacks").mkdir()
    path = stack_file.write(row, root=tmp_path, stack="big", experiment="test")
    whole = spec.read_config(path)["trainstack:cluster"]
    assert whole == {**config, "max_lifetime": "13h"}
    assert spec.parse(whole, file=path.name).max_lifetime_s == 13 * 3600
    with pytest.raises(SpecError, match="is there already, and isn't overwritten"):
        stack_file.write(row, root=tmp_path, stack="big", experiment="test")


def test_people_and_programs_are_told_the_same() -> None:
    row = made(strategy={"name": "deepspeed", "stage": 3})
    options: dict[str, Any] = {"forecast": forecast(need()), "assumed": EVEN, "now": NOW}
    text = table.text([row], ["a note"], **options)
    assert "1122.80   10.2  110.08  on-demand  aws       2 × p5.48xlarge  16 × H100  us-east-1  deepspeed 3" in text
    assert "MFU 0.5" in text
    assert text.endswith("a note")
    told = json.loads(table.document([row], ["a note"], **options))
    (one,) = told["rows"]
    assert (one["usd"], one["hours"], one["cluster"]["nodes"], one["strategy"]["stage"]) == (1122.8, 10.2, 2, 3)
    assert told["assumed"]["mfu"] == 0.5


@pytest.mark.parametrize("text", ["", "0", "1,,2", "two", "1.5", "-1", "1000"])
def test_a_list_of_nodes_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="--nodes"):
        command.numbers(text)


def test_numbers_of_nodes_are_taken_once_and_in_order() -> None:
    assert command.numbers("4, 1,4") == (1, 4)
    assert command.numbers(None) == command.NODES


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "much", "1.01"])
def test_an_assumption_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"^--mfu .* above 0 and at most 1: write it as in --mfu 0\.5$"):
        command.amount("--mfu", text, most=1.0)
