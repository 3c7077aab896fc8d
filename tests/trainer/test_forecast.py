"""What a run needs on each of several clusters, as programs read it."""

from __future__ import annotations

import json

import pytest

from tests.trainer.conftest import ROOT
from trainer.__main__ import main

LARGE = str(ROOT / "trainer" / "recipes" / "llama-1b.yaml")
H100 = {"gpu_memory_gib": 80, "device": "NVIDIA H100 80GB HBM3"}


def test_each_cluster_gets_its_strategy_and_its_work(capsys: pytest.CaptureFixture[str]) -> None:
    clusters = [
        {"nodes": 2, "gpus": 8, **H100},
        {"nodes": 1, "gpus": 3, **H100},
        {"nodes": 1, "gpus": 1, "gpu_memory_gib": 8, "device": "a GPU that nobody knows"},
    ]
    assert main(["forecast", LARGE, "--clusters", json.dumps(clusters)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["experiment"], answer["steps"], answer["tokens"]) == ("llama-1b", 200, 200 * 64 * 2048)
    assert answer["flops_per_token"] == pytest.approx(6 * answer["parameters"] + 12 * 16 * 2048 * 2048, rel=0.01)
    sixteen, three, one = answer["clusters"]
    assert sixteen["strategy"] == {"name": "ddp"}
    assert 0 < sixteen["peak"] < 0.9 * 80 * 2**30
    assert (sixteen["sent"] > 4 * answer["parameters"], sixteen["peak_flops"]) == (True, 989.4e12)
    assert (three["strategy"], three["peak_flops"]) == (None, None)
    assert "start 2 or 4 ranks" in three["reason"]
    assert one["strategy"] is None
    assert one["reason"].startswith("none fits: ")


@pytest.mark.parametrize(
    ("clusters", "told"),
    [
        ("no JSON", "the whole: Invalid JSON"),
        ("{}", "the whole: Input should be a valid array"),
        ('[{"nodes": 0, "gpus": 8, "gpu_memory_gib": 80, "device": ""}]', "0.nodes: Input should be greater than 0"),
        ('[{"nodes": 1}]', "0.gpus: Field required"),
    ],
)
def test_clusters_that_are_none_are_refused(clusters: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forecast", LARGE, "--clusters", clusters]) == 2
    assert capsys.readouterr().err.startswith(f"--clusters isn't a list of clusters ({told}")
