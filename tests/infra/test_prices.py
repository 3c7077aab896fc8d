"""The price catalogues: known figures, unknown stays unknown, every figure dated."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from infra import prices

PROVIDERS = ("aws", "gcp")
REGIONS = {
    "aws": ("us-east-1", "us-east-2", "us-west-2", "eu-west-1", "eu-central-1", "eu-north-1", "ap-northeast-1"),
    "gcp": (
        "us-central1", "us-east1", "us-east4", "us-west1", "us-west4", "europe-west4",
        "asia-southeast1", "asia-northeast1",
    ),
}  # fmt: skip
OTHERS = {
    "aws": (
        "nat_gateway_hour", "nat_gateway_gb", "public_ipv4", "gp3", "interface_endpoint_hour", "interface_endpoint_gb",
        "fsx_lustre_scratch2", "fsx_lustre_persistent2_125", "efs_standard", "s3_standard", "internet_egress_gb",
    ),
    "gcp": (
        "cloud_nat_vm_hour", "cloud_nat_cap_hour", "cloud_nat_gb", "external_ipv4", "pd_balanced", "pd_ssd",
        "hyperdisk_balanced", "local_ssd", "filestore_basic_hdd", "filestore_basic_ssd", "filestore_zonal",
        "gcs_standard", "internet_egress_gb",
    ),
}  # fmt: skip


def usd(provider: str, region: str, instance: str, market: prices.Market) -> float | None:
    price = prices.machine(provider, region=region, instance=instance, market=market)
    return None if price is None else price.usd


def test_a_machine_has_a_price_with_unit_source_and_date() -> None:
    price = prices.machine("aws", region="us-east-1", instance="p5.48xlarge", market="on-demand")
    assert price is not None
    assert (price.usd, price.unit) == (55.04, "hour")
    assert "SkyPilot" in price.source
    assert price.as_of == datetime(2026, 8, 21, tzinfo=UTC)


def test_spot_is_the_highest_of_the_zones() -> None:
    assert usd("aws", "us-east-2", "p5.48xlarge", "spot") == 11.9912


def test_gcp_adds_the_machine_and_its_gpus() -> None:
    assert usd("gcp", "us-east4", "a3-highgpu-8g", "on-demand") == pytest.approx(9.46006 + 78.37241, abs=1e-4)
    assert usd("gcp", "us-central1", "g2-standard-96", "spot") == pytest.approx(1.40966 + 8 * 0.2231, abs=1e-4)


def test_an_entry_may_be_newer_than_its_file() -> None:
    price = prices.machine("gcp", region="us-central1", instance="a3-highgpu-8g", market="spot")
    assert price is not None
    assert price.as_of == datetime(2026, 9, 26, tzinfo=UTC)
    assert "silybench" in price.source


@pytest.mark.parametrize(
    ("provider", "region", "instance", "market"),
    [
        ("aws", "us-east-2", "p5e.48xlarge", "on-demand"),  # sold as capacity blocks only
        ("aws", "us-east-1", "p5.4xlarge", "spot"),
        ("aws", "us-east-1", "p99.48xlarge", "on-demand"),
        ("aws", "moon-1", "p5.48xlarge", "on-demand"),
        ("gcp", "us-central1", "a2-ultragpu-8g", "on-demand"),  # the catalogue's figure is below its own spot price
        ("gcp", "us-central1", "a3-highgpu-8g", "flex-start"),
    ],
)
def test_what_is_unknown_is_none(provider: str, region: str, instance: str, market: prices.Market) -> None:
    assert prices.machine(provider, region=region, instance=instance, market=market) is None


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_promised_regions_and_units_are_there(provider: str) -> None:
    catalogue = json.loads((prices.FOLDER / f"{provider}.json").read_text(encoding="utf-8"))
    assert set(REGIONS[provider]) <= set(catalogue["usd_per_hour"])
    assert tuple(catalogue["other"]) == OTHERS[provider]
    for name in OTHERS[provider]:
        price = prices.other(provider, name)
        assert price is not None
        assert price.source
        assert price.as_of.tzinfo is UTC


@pytest.mark.parametrize("provider", PROVIDERS)
def test_spot_never_costs_more_than_on_demand(provider: str) -> None:
    catalogue = json.loads((prices.FOLDER / f"{provider}.json").read_text(encoding="utf-8"))
    for region, machines in catalogue["usd_per_hour"].items():
        for instance, entry in machines.items():
            if entry["on_demand"] is not None and entry["spot"] is not None:
                assert entry["spot"] <= entry["on_demand"] * 1.001, (region, instance)


def test_an_other_price_that_is_not_there_is_none() -> None:
    assert prices.other("aws", "unicorns") is None


def test_a_figure_from_memory_says_so() -> None:
    price = prices.other("aws", "gp3")
    assert price is not None
    assert (price.usd, price.unit, price.source) == (0.08, "GiB-month", "from memory, not checked")


def test_a_missing_file_raises() -> None:
    with pytest.raises(FileNotFoundError):
        prices.other("unknown-provider", "gp3")
