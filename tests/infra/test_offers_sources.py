"""Where offers come from: gpuhunt's catalogue in its format, Vast.ai, Lambda's API, the snapshot; the deadline."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from infra import providers
from infra.errors import AccessError, ProviderError
from infra.offers import asking, hunted, live, snapshot
from infra.offers.asking import ANSWER, ask_all, gather
from infra.offers.offer import Offer
from infra.offers.sources import SNAPSHOT, SOURCES, Answer, Source
from infra.offers.wish import Wish, fitting
from tests.infra.lambda_cloud.conftest import cloud
from tests.infra.offering import OFFLINE, offer, publish, row
from tests.stand_ins.lambda_cloud.server import StandIn

__all__ = ["cloud"]
VERSION = "20261130-4711"
DAY = datetime(2026, 11, 30, tzinfo=UTC)
CATALOGUES = {
    "aws": [
        row("p5.48xlarge", "us-east-1", 55.04, "H100"),
        row("p5.48xlarge", "us-east-1", 24.5, "H100", spot="True"),
        row("p5e.48xlarge", "us-east-2", 0.0, "H200"),
        row("g99.48xlarge", "us-east-1", 1.0, "H100"),
        row("t3.small", "us-east-1", 0.02, "", 0, gpu_memory="", gpu_vendor=""),
    ],
    "gcp": [
        row("a3-megagpu-8g", "us-central1-a", 92.0, "H100"),
        row("a3-highgpu-1g", "us-central1-a", 11.0, "H100", 1),
        row("a3-highgpu-1g", "us-central1-a", 6.5, "H100", 1, spot="True"),
    ],
    "lambdalabs": [
        row("gpu_8x_a100_80gb_sxm4", "us-east-1", 22.32, "A100"),
        row("gpu_1x_a100", "us-east-1", 1.99, "A100", 1, gpu_memory="40.0"),
        row("gpu_1x_gh200", "us-east-1", 2.29, "GH200", 1, flags="lambda-arm", cpu_arch="arm"),
    ],
    "runpod": [
        row("NVIDIA H100 80GB HBM3", "EU-NL-1", 27.92, "H100"),
        row("NVIDIA H100 80GB HBM3", "EU-NL-1", 27.92, "H100", spot="True"),
        row("NVIDIA H200", "EU-NL-1", 36.72, "H200"),
        row("NVIDIA H200", "EU-NL-1", 18.0, "H200", spot="True"),
        row("NVIDIA H100 80GB HBM3", "EU-NL-1", 30.4, "H100", flags="runpod-cluster",
            provider_data='{"pod_counts": [2, 3, 4]}'),
        row("AMD Instinct MI300X", "EU-RO-1", 20.0, "MI300X", gpu_vendor="amd", gpu_memory="192.0"),
        row("cpu3c-2-4", "EU-NL-1", 0.1, "", 0, flags="runpod-cpu", gpu_memory="", gpu_vendor=""),
    ],
}  # fmt: skip


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """gpuhunt's catalogue, in a folder instead of its web address, and nothing else to be reached."""
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GPUHUNT_CATALOG_URL", publish(tmp_path / "catalogue", CATALOGUES, version=VERSION))
    return tmp_path / "catalogue"


def of(provider: str, answer: Answer) -> list[Offer]:
    return [each for each in answer.offers if each.provider == provider]


def test_aws_has_the_network_and_gpus_of_our_table_and_types_that_it_has(published: Path) -> None:
    del published
    listed, spot, unknown = of("aws", hunted.catalogue(Wish()))
    assert listed == offer(source="gpuhunt's catalogue of AWS (spot: the cheapest zone)", as_of=DAY)
    assert (spot.market, spot.usd_per_hour) == ("spot", 24.5)
    assert (unknown.instance, unknown.gpu_memory_gib, unknown.usd_per_hour) == ("p5e.48xlarge", 141.0, None)


def test_gcp_has_only_the_markets_in_which_a_type_is_sold(published: Path) -> None:
    del published
    mega, small = of("gcp", hunted.catalogue(Wish()))
    assert (mega.instance, mega.network, mega.region) == ("a3-megagpu-8g", "TCPXO", "us-central1-a")
    assert (small.instance, small.market, small.network) == ("a3-highgpu-1g", "spot", "Ethernet")


def test_lambda_tells_nothing_of_capacity_and_arm_is_left_out(published: Path) -> None:
    del published
    found = of("lambda", hunted.catalogue(Wish()))
    assert [(e.instance, e.gpu_model, e.available) for e in found] == [
        ("gpu_8x_a100_80gb_sxm4", "A100-80GB", None), ("gpu_1x_a100", "A100", None)
    ]  # fmt: skip


def test_runpod_has_pods_alone_clusters_together_and_no_spot_at_the_same_price(published: Path) -> None:
    del published
    pod, _, spot, cluster = of("runpod", hunted.catalogue(Wish()))
    assert (spot.market, spot.usd_per_hour) == ("spot", 18.0)
    assert (pod.usd_per_hour, pod.network, pod.market, pod.most_nodes) == (27.92, "none", "on-demand", 1)
    assert (cluster.usd_per_hour, cluster.network) == (30.4, "overlay")
    assert (cluster.fewest_nodes, cluster.most_nodes) == (2, 4)


def test_a_catalogue_that_is_missing_empty_or_undated_is_a_problem_of_its_provider_alone(published: Path) -> None:
    (published / "aws" / "version").unlink()
    (published / "runpod" / VERSION).rename(published / "runpod" / "newest")
    (published / "runpod" / "version").write_text("newest")
    publish(published, {"azure": []}, version=VERSION)
    for path in (published / "gcp").rglob("*.zip"):
        path.unlink()
    answer = hunted.catalogue(Wish())
    assert {each.provider for each in answer.offers} == {"lambda"}
    assert answer.problems == {
        "aws": "gpuhunt's catalogue of aws can't be loaded: look at the network",
        "gcp": "gpuhunt's catalogue of gcp can't be loaded: look at the network",
        "runpod": "gpuhunt's catalogue of runpod has version 'newest', which is no date",
    }


def test_a_catalogue_without_a_machine_of_ours_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUHUNT_CATALOG_URL", publish(tmp_path, CATALOGUES | {"aws": []}, version=VERSION))
    told = hunted.catalogue(Wish()).problems
    assert told == {"aws": "gpuhunt's catalogue of aws has no machine that this project can make"}


def test_no_catalogue_at_all_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUHUNT_CATALOG_URL", tmp_path.as_uri())
    with pytest.raises(ProviderError, match=r"^gpuhunt's catalogue can't be loaded \(.+\): look at the network$"):
        hunted.catalogue(Wish())


# --- Vast.ai --------------------------------------------------------------------------------------------------------

VAST_OFFER = {
    "id": 31, "gpu_name": "A100 SXM4", "num_gpus": 8, "gpu_ram": 81920, "cpu_cores": 128, "cpu_cores_effective": 128.0,
    "cpu_ram": 1000000, "disk_space": 5000.0, "storage_cost": 0.18, "dph_base": 9.6, "dph_total": 9.7, "min_bid": 4.8,
    "geolocation": "Stockholm, SE", "rentable": True, "rented": False,
}  # fmt: skip


class Market(ThreadingHTTPServer):
    """Answers a search for offers with `status` and `told`; `asked` is what was searched for."""

    def __init__(self) -> None:
        self.status, self.told, self.asked = 200, json.dumps({"offers": [VAST_OFFER]}), list[dict[str, Any]]()
        super().__init__(("127.0.0.1", 0), _Search)


class _Search(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Market)
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.told.encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def market(monkeypatch: pytest.MonkeyPatch) -> Iterator[Market]:
    from gpuhunt.providers import vastai

    with Market() as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        monkeypatch.setattr(vastai, "bundles_url", f"http://127.0.0.1:{server.server_port}/")
        yield server
        server.shutdown()


def test_vast_is_asked_for_what_was_wished_and_an_offer_is_one_machine_that_is_free(market: Market) -> None:
    spot, listed = hunted.vast(Wish(gpu="a100-80gb", count=8)).offers
    (asked,) = market.asked
    assert asked["gpu_name"] == {"in": ["A100 PCIE", "A100 SXM4"]}
    assert asked["num_gpus"] == {"gte": 8, "lte": 8}
    assert listed.usd_per_hour == pytest.approx(9.6 + 100 * 0.18 / 720)
    assert (listed.market, listed.available, listed.most_nodes) == ("on-demand", True, 1)
    assert (listed.gpu_model, listed.region, listed.network) == ("A100-80GB", "se-stockholm", "unknown")
    assert (spot.market, spot.usd_per_hour) == ("spot", pytest.approx(4.8 + 100 * 0.18 / 720))
    assert fitting([spot, listed], Wish(region="eu", is_spot=True)) == [spot]


@pytest.mark.parametrize(("status", "told"), [(500, ""), (200, "<html>"), (200, "{}"), (200, '{"offers": [{}]}')])
def test_a_market_that_answers_nonsense_is_a_problem(market: Market, status: int, told: str) -> None:
    market.status, market.told = status, told
    with pytest.raises(ProviderError, match=r"Vast\.ai's offers can't be had"):
        hunted.vast(Wish(gpu="H100"))


def test_vast_is_not_asked_for_several_nodes() -> None:
    with pytest.raises(ProviderError, match=r"which of Vast\.ai's machines share a network"):
        hunted.vast(Wish(nodes=2))


# --- Lambda's API ---------------------------------------------------------------------------------------------------


def test_lambda_says_yes_and_no(cloud: StandIn) -> None:
    cloud.capacity = {("us-west-1", "gpu_8x_h100_sxm5"): 1}
    found = [each for each in live.lambda_cloud(Wish()).offers if each.instance == "gpu_8x_h100_sxm5"]
    assert {each.region: each.available for each in found} == {
        "europe-central-1": False, "us-east-1": False, "us-west-1": True, "us-west-2": False
    }  # fmt: skip
    assert {(each.usd_per_hour, each.gpu_model, each.source) for each in found} == {(23.92, "H100", "Lambda's API")}


def test_without_a_key_the_variable_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("LAMBDA_API_KEY", "LAMBDA_CLOUD_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(AccessError, match=r"cloud\.lambda\.ai/api-keys and set LAMBDA_API_KEY"):
        live.lambda_cloud(Wish())


# --- the snapshot ---------------------------------------------------------------------------------------------------


def test_the_snapshot_has_every_provider_and_each_figure_a_source_and_a_date() -> None:
    offers = snapshot.offers()
    assert {each.provider for each in offers} >= (providers.MODULES.keys() - {"local"}) | {
        "runpod", "vast", "coreweave"
    }  # fmt: skip
    for each in offers:
        assert each.source
        assert each.as_of.tzinfo is UTC
        assert datetime(2026, 1, 1, tzinfo=UTC) < each.as_of < datetime(2027, 1, 1, tzinfo=UTC)
        assert each.available is None


def test_every_source_is_of_providers_that_the_snapshot_can_stand_in_for() -> None:
    known = {each.provider for each in snapshot.offers()}
    assert {provider for source in SOURCES.values() for provider in source.providers} <= known


def test_no_offer_of_the_snapshot_is_there_twice() -> None:
    keys = Counter((e.provider, e.instance, e.region, e.gpu_count, e.market, e.fewest_nodes) for e in snapshot.offers())
    assert [key for key, times in keys.items() if times > 1] == []


@pytest.mark.parametrize(
    ("provider", "instance", "region", "market", "usd"),
    [
        ("aws", "p5.48xlarge", "us-east-1", "on-demand", 55.04),
        ("aws", "p5e.48xlarge", "us-east-2", "on-demand", None),
        ("gcp", "a3-megagpu-8g", "asia-northeast1", "spot", 22.17133),
        ("lambda", "gpu_8x_h100_sxm5", "us-west-1", "on-demand", 31.92),
        ("coreweave", "gd-8xh100ib-i128", "NA", "spot", 19.71),
        ("coreweave", "HGX B300", "NA", "on-demand", None),
        ("vast", "H200", None, "spot", None),
    ],
)
def test_figures_of_the_snapshot(provider: str, instance: str, region: str, market: str, usd: float | None) -> None:
    found = [
        each.usd_per_hour
        for each in snapshot.offers()
        if (each.provider, each.instance, each.region, each.market) == (provider, instance, region, market)
        and each.gpu_count == 8
    ]
    assert found == [usd]


# --- asking ---------------------------------------------------------------------------------------------------------


def test_sources_are_asked_in_processes_of_their_own(published: Path, cloud: StandIn) -> None:
    del published
    cloud.capacity = {("us-east-1", "gpu_8x_h100_sxm5"): 1}
    found = gather(Wish(gpu="H100", count=8))
    told = {(each.provider, each.source) for each in fitting(found.offers, Wish(gpu="H100", count=8))}
    assert {source for provider, source in told if provider == "lambda"} == {"Lambda's API"}
    assert {source for provider, source in told if provider == "runpod"} == {"gpuhunt's catalogue of RunPod: pods"}
    assert {provider for provider, _ in told} == {"aws", "gcp", "lambda", "runpod", "vast", "coreweave"}
    (note,) = found.notes
    assert note.startswith("vast: Vast.ai's offers can't be had (")
    assert note.endswith(f"look at the network; {SNAPSHOT} stands in")


def test_a_source_that_does_not_answer_is_ended_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("GPUHUNT_CATALOG_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        one = {"catalogue": SOURCES["catalogue"]}
        answers = ask_all(Wish(), sources=one, deadline_s=1.0)
    problem = "gpuhunt's catalogue didn't answer in 1 s"
    assert answers == {"catalogue": Answer(problems=dict.fromkeys(("aws", "gcp", "lambda", "runpod"), problem))}


def test_a_process_that_breaks_is_a_problem_of_its_source() -> None:
    unknown = {"moon": Source(name="The Moon", providers=("moon",), function="")}
    answers = ask_all(Wish(), sources=unknown, deadline_s=120.0)
    assert answers == {"moon": Answer(problems={"moon": "The Moon couldn't be asked (KeyError: 'moon')"})}


def test_an_answer_is_the_same_after_its_way_through_json() -> None:
    answer = Answer(offers=(offer(), offer(usd_per_hour=None, region=None)), problems={"gcp": "no"})
    assert ANSWER.validate_json(ANSWER.dump_json(answer)) == answer


def test_the_deadline_is_short_enough_to_wait_for() -> None:
    assert asking.DEADLINE_S <= 30
