"""Choosing and showing offers: order, filters, what is unknown or old, and which source counts. No source is asked."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from infra.errors import NoOfferError, SpecError
from infra.offers import places, table, wish
from infra.offers.asking import combined
from infra.offers.offer import OFFERS, Offer
from infra.offers.sources import Answer, Source
from infra.offers.wish import Wish, fitting, left_out, nothing
from tests.infra.offering import NOW, offer

ANY = Wish()


def parsed(**words: str | None) -> Wish:
    none = dict.fromkeys(("gpu", "count", "nodes", "region", "max_hourly"))
    return wish.parse(is_spot=False, **{**none, **words})


def test_the_cheapest_gpu_comes_first_and_unknown_prices_last() -> None:
    unknown, dear = offer(usd_per_hour=None), offer(usd_per_hour=80.0)
    one = offer(instance="p5.4xlarge", gpu_count=1, usd_per_hour=6.0)
    assert fitting([unknown, dear, one], ANY) == [one, dear, unknown]
    assert (one.usd_per_gpu_hour, dear.usd_per_gpu_hour, unknown.usd_per_gpu_hour) == (6.0, 10.0, None)
    assert (dear.usd_per_hour_of(2), unknown.usd_per_hour_of(2)) == (160.0, None)


def test_equal_prices_are_in_the_same_order_whatever_the_sources_order() -> None:
    offers = [offer(region=region, provider=p) for p in ("gcp", "aws") for region in ("us-west-2", "us-east-1", None)]
    assert fitting(offers, ANY) == fitting(offers[::-1], ANY)


@pytest.mark.parametrize("usd", [0.0, -1.0])
def test_no_offer_has_a_price_of_nothing(usd: float) -> None:
    with pytest.raises(ValueError, match="an unknown price is None"):
        offer(usd_per_hour=usd)


@pytest.mark.parametrize(
    ("asked", "fits"),
    [
        (Wish(gpu="h100"), True),
        (Wish(gpu="H200"), False),
        (Wish(count=8), True),
        (Wish(count=4), False),
        (Wish(is_spot=True), False),
        (Wish(nodes=2, max_usd_per_hour=110.08), True),
        (Wish(nodes=2, max_usd_per_hour=110.07), False),
        (Wish(region="us-east"), True),
        (Wish(region="eu"), False),
    ],
)
def test_an_offer_must_fit_every_option(asked: Wish, fits: bool) -> None:
    assert bool(fitting([offer()], asked)) is fits


def test_under_a_cap_an_unknown_price_does_not_fit_and_that_is_told() -> None:
    offers = [offer(usd_per_hour=None, provider="vast")]
    asked = Wish(max_usd_per_hour=60.0)
    assert fitting(offers, asked) == []
    assert left_out(offers, asked) == ["vast: offers at an unknown price are left out by --max-hourly"]


def test_an_offer_without_a_region_is_in_none_and_that_is_told() -> None:
    offers = [offer(region=None, provider="runpod"), offer(region="eu-north-1")]
    asked = Wish(region="eu")
    assert fitting(offers, asked) == [offers[1]]
    assert left_out(offers, asked) == ["runpod: offers without a region are left out by --region"]
    assert left_out(offers, ANY) == []


def test_gpus_are_the_same_however_a_provider_writes_them() -> None:
    assert fitting([offer(gpu_model="RTX4090")], Wish(gpu="rtx-4090"))
    assert not fitting([offer(gpu_model="A100-80GB")], Wish(gpu="A100"))  # 40 GB, as in a stack file


def test_machines_that_come_alone_or_as_a_cluster_only() -> None:
    pod, cluster = offer(network="none", most_nodes=1), offer(network="overlay", fewest_nodes=2, most_nodes=8)
    assert fitting([pod, cluster], Wish(nodes=1)) == [pod]
    assert fitting([pod, cluster], Wish(nodes=2)) == [cluster]
    assert fitting([pod, cluster], Wish(nodes=9)) == []


@pytest.mark.parametrize(
    ("wanted", "provider", "region", "there"),
    [
        ("us-east-1", "aws", "us-east-1", True),
        ("US-EAST-1", "aws", "us-east-1", True),
        ("us-east", "gcp", "us-east4", True),
        ("eu", "aws", "eu-north-1", True),
        ("eu", "gcp", "europe-west4", True),
        ("eu", "lambda", "europe-central-1", True),
        ("eu", "runpod", "NL", True),
        ("eu", "runpod", "EUR-IS-1", True),
        ("eu", "vast", "se-stockholm", True),
        ("eu", "aws", "us-east-1", False),
        ("eu", "coreweave", "NA", False),
        ("us", "coreweave", "NA", True),
        ("us", "runpod", "US-CA-2", True),
        ("canada", "runpod", "US-CA-2", False),
        ("canada", "runpod", "CA-MTL-1", True),
        ("us", "gcp", "us-central1", True),
        ("us", "aws", "ca-central-1", False),
        ("asia", "aws", "ap-northeast-1", True),
        ("asia", "gcp", "asia-northeast3", True),
        ("asia", "runpod", "SEA-SG-1", True),
        ("asia", "aws", "ap-southeast-2", False),
        ("oceania", "aws", "ap-southeast-2", True),
        ("nl", "gcp", "europe-west4", True),
        ("NL", "runpod", "EU-NL-1", True),
        ("de", "gcp", "europe-west10", True),
        ("be", "gcp", "europe-west10", False),
        ("eu", "vast", None, False),
    ],
)
def test_a_region_is_meant_by_its_name_its_beginning_its_country_or_a_continent(
    wanted: str, provider: str, region: str | None, there: bool
) -> None:
    assert places.is_in(wanted, provider=provider, region=region) is there


def test_the_help_names_the_words_for_continents() -> None:
    from infra import tasks

    assert f"or {', '.join(places.continents())}" in tasks.prices.help["region"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"count": "0"}, "--count '0' is no whole number from 1 on"),
        ({"nodes": "two"}, "--nodes 'two' is no whole number from 1 on"),
        ({"max_hourly": "0"}, "--max-hourly '0' is no amount above 0"),
        ({"max_hourly": "nan"}, "--max-hourly 'nan' is no amount above 0"),
        ({"max_hourly": "$60"}, r"--max-hourly '\$60' is no amount above 0"),
        ({"gpu": "H100:8"}, r"--gpu 'H100:8' is no GPU model: write the model alone, as in --gpu H100 --count 8"),
        ({"region": " "}, "--region is empty: write a region, .* or eu or us"),
    ],
)
def test_an_option_that_cannot_be_is_refused_with_its_name(words: dict[str, str], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        parsed(**words)


def test_options_are_read() -> None:
    asked = parsed(gpu="H100", count="8", nodes="2", region="eu", max_hourly="60.5")
    assert asked == Wish(gpu="H100", count=8, nodes=2, region="eu", max_usd_per_hour=60.5)
    assert parsed() == ANY


def test_when_nothing_fits_the_option_that_stands_in_the_way_is_named() -> None:
    error = nothing([offer(), offer(region="us-west-2")], Wish(gpu="H100", count=8, region="eu", nodes=2))
    assert isinstance(error, NoOfferError)
    assert error.exit_code == 11
    assert str(error) == "no provider offers 2 × H100:8, in eu: 2 offer(s) would fit without --region"
    error = nothing([offer()], Wish(max_usd_per_hour=55.0))
    assert str(error).endswith("for at most $55.00 per hour: 1 offer(s) would fit without --max-hourly")
    assert str(nothing([offer()], Wish(is_spot=True, count=4))) == (
        "no provider offers 1 × any GPU:4, spot: ask for less"
    )


def test_a_gpu_that_nobody_has_is_answered_with_near_names() -> None:
    error = nothing([offer(), offer(gpu_model="A100-80GB")], Wish(gpu="H10O"))
    assert str(error) == "no provider has a machine with H10O GPUs: take a model such as H100"


# --- sources --------------------------------------------------------------------------------------------------------

SOURCES = {
    "api": Source(name="Lambda's API", providers=("lambda",), function=""),
    "list": Source(name="the list", providers=("lambda", "runpod"), function=""),
}
REST = tuple(offer(provider=name, source="snapshot") for name in ("aws", "lambda", "runpod"))


def of(provider: str, source: str) -> Offer:
    return offer(provider=provider, source=source)


def test_the_best_source_that_answered_counts_alone() -> None:
    listed = Answer(offers=(of("lambda", "list"), of("runpod", "list")))
    found = combined({"api": Answer(offers=(of("lambda", "api"),)), "list": listed}, sources=SOURCES, rest=REST)
    assert [(e.provider, e.source) for e in found.offers] == [
        ("lambda", "api"), ("runpod", "list"), ("aws", "snapshot")
    ]  # fmt: skip
    assert found.notes == ()


def test_the_next_source_stands_in_and_then_the_snapshot_and_each_is_told() -> None:
    broken = Answer(problems={"lambda": "no key: set LAMBDA_API_KEY"})
    listed = Answer(offers=(of("lambda", "list"),), problems={"runpod": "its list is broken"})
    found = combined({"api": broken, "list": listed}, sources=SOURCES, rest=REST)
    assert [(e.provider, e.source) for e in found.offers] == [
        ("lambda", "list"), ("aws", "snapshot"), ("runpod", "snapshot")
    ]  # fmt: skip
    assert found.notes == (
        "lambda: no key: set LAMBDA_API_KEY; the list stands in",
        "runpod: its list is broken; the snapshot of this checkout stands in",
    )


def test_one_reason_is_one_line_and_an_empty_answer_is_told() -> None:
    down = Answer(problems={"lambda": "it is down", "runpod": "it is down"})
    found = combined({"api": Answer(), "list": down}, sources=SOURCES, rest=REST)
    assert {each.provider for each in found.offers} == {"aws", "runpod"}
    assert found.notes == (
        "lambda: it is down; Lambda's API stands in",
        "runpod: it is down; the snapshot of this checkout stands in",
        "lambda: Lambda's API has nothing like that now",
    )


# --- showing --------------------------------------------------------------------------------------------------------


def test_a_table_has_prices_of_all_nodes_merges_regions_and_dates_its_sources() -> None:
    old = datetime(2026, 8, 21, tzinfo=UTC)
    offers = [
        *(offer(region=region) for region in ("eu-north-1", "us-east-1", "us-west-2")),
        offer(provider="coreweave", usd_per_hour=None, region=None, gpu_memory_gib=None, source="a list", as_of=old),
        offer(provider="lambda", available=True),
        offer(provider="lambda", available=False, region="us-west-2"),
    ]
    shown = table.text(offers, ["vast: no answer"], wish=Wish(nodes=2), now=NOW).splitlines()
    head, aws, coreweave, free, taken, _, first, second, stale, note = shown
    assert head.split() == (
        [
            "$/h",
            "$/GPU-h",
            "market",
            "provider",
            "machines",
            "GPU",
            "GiB",
            "region",
            "network",
            "free",
            "now",
            "price",
            "from",
        ]
    )
    assert aws.split("  ")[0] == " 110.08"
    for cell in ("6.88", "aws", "2 × p5.48xlarge", "8 × H100", "eu-north-1, us-east-1 and 1 more", "EFA", "unknown"):
        assert cell in aws
    assert aws.endswith("[1] 2 d")
    assert coreweave.startswith("unknown  unknown")
    assert coreweave.endswith("[2] 104 d, stale")
    assert " yes " in free
    assert " no " in taken
    assert first == "[1] a test, as of 2026-12-01"
    assert second == "[2] a list, as of 2026-08-21"
    assert stale.startswith("stale: older than 30 days; ")
    assert note == "vast: no answer"


def test_stale_begins_after_thirty_days() -> None:
    assert not offer(as_of=NOW - timedelta(days=30)).is_stale(NOW)
    assert offer(as_of=NOW - timedelta(days=30, seconds=1)).is_stale(NOW)
    assert "stale" not in table.text([offer()], [], wish=ANY, now=NOW)


def test_json_holds_the_offers_and_what_follows_from_them() -> None:
    offers = (
        offer(available=True, most_nodes=8),
        offer(usd_per_hour=None, region=None, gpu_memory_gib=None, as_of=NOW - timedelta(days=31)),
    )
    told = json.loads(table.document(offers, ["a note"], wish=Wish(gpu="H100", nodes=2), now=NOW))
    assert OFFERS.validate_python(told["offers"]) == offers
    first, second = told["offers"]
    assert (first["usd_per_hour_all_nodes"], first["usd_per_gpu_hour"]) == (110.08, 6.88)
    assert (first["age_days"], first["is_stale"]) == (2, False)
    assert (second["usd_per_hour"], second["usd_per_hour_all_nodes"], second["usd_per_gpu_hour"]) == (None, None, None)
    assert (second["age_days"], second["is_stale"]) == (31, True)
    assert (told["asked"]["gpu"], told["asked"]["nodes"], told["notes"]) == ("H100", 2, ["a note"])
