"""The prediction of memory: against what really lies on each rank, and what it says of models of any size."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench import gpu_memory
from tests.trainer.conftest import RECIPE, ROOT
from tests.trainer.ranks import call
from trainer import footprint
from trainer.__main__ import main
from trainer.config import Recipe
from trainer.errors import ConfigError
from trainer.footprint import Footprint, Measured, recommend, weights_of
from trainer.models.build import build_shapes
from trainer.recipe_file import load
from trainer.strategies.layouts import layouts

LARGE = ROOT / "trainer" / "recipes" / "llama-1b.yaml"
SHAPE = "model={layers: 3, width: 96, heads: 4, kv_heads: 2, hidden: 200, vocabulary: 257}"


def measured(overrides: list[str]) -> dict[str, int]:
    return gpu_memory.measured(load(RECIPE, overrides))


@pytest.mark.parametrize(("strategy", "world"), [("single", 1), ("ddp", 2), ("fsdp", 2), ("fsdp", 3), ("hsdp", 4)])
def test_the_predicted_bytes_lie_on_the_rank_that_holds_most(strategy: str, world: int) -> None:
    overrides = [SHAPE, f"strategy={strategy}", f"training.global_batch_size={world}"]
    overrides += ["strategy.replicate=2"] if strategy == "hsdp" else []
    recipe = load(RECIPE, overrides)
    weights = weights_of(build_shapes(recipe).model)
    per_node = 2 if strategy == "hsdp" else world
    (layout,) = [
        one for one in layouts(world, per_node=per_node) if one.name.split()[0:1] == [strategy] and not one.in_host
    ]
    predicted = footprint.predict(layout, weights, None, low=False, micro_batches=1)
    found = call(world, measured, overrides)
    for kind in ("parameters", "gradients", "optimizer"):
        assert getattr(predicted, kind) == pytest.approx(max(rank[kind] for rank in found), rel=0.02), kind


def all_of(recipe: Recipe, *, ranks: int, per_node: int = 8) -> dict[str, Footprint]:
    found, notes = Measured(recipe).footprints(ranks=ranks, per_node=per_node)
    assert not notes
    return {one.strategy: one for one in found}


def test_shards_shrink_with_the_number_of_ranks() -> None:
    recipe = load(LARGE, ["training.micro_batch_size=1"])
    few, many = all_of(recipe, ranks=8)["fsdp"], all_of(recipe, ranks=32)["fsdp"]
    for kind in ("parameters", "gradients", "optimizer"):
        assert getattr(few, kind) / getattr(many, kind) == pytest.approx(4, rel=0.02)


def test_activation_checkpointing_and_bf16_need_less_memory_for_activations() -> None:
    def kept(*overrides: str) -> int:
        return all_of(load(LARGE, ["training.micro_batch_size=1", *overrides]), ranks=8)["fsdp"].activations or 0

    plain = kept()
    assert kept("training.activation_checkpointing=true") < plain / 3
    assert kept("training.precision=float32") > 1.5 * plain


def test_seventy_billion_parameters_are_answered_without_memory_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["footprint", str(LARGE), "--gpus", "64", "--gpu-memory", "80", "--json"]
    shape = ["model={preset: llama-3.1-70b}", "training.activation_checkpointing=true", "training.micro_batch_size=1"]
    assert main([*words, *(word for item in shape for word in ("--set", item))]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["parameters"] == 70_553_706_496
    assert answer["strategy"] == {"name": "fsdp"}
    by_name = {one["strategy"]: one for one in answer["footprints"]}
    assert by_name["ddp"]["parameters"] == 4 * 70_553_706_496
    assert by_name["ddp"]["peak"] > 1e12 > 80 * 2**30 > by_name["fsdp"]["peak"]
    # the settings are ones that a recipe may hold
    assert load(RECIPE, [f"strategy={json.dumps(answer['strategy'])}"]).strategy.name == "fsdp"


def test_the_table_says_what_fits_and_what_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["footprint", str(RECIPE), "--gpus", "2", "--gpu-memory", "80"]) == 0
    output = capsys.readouterr().out
    assert "28,832 parameters on 2 GPUs" in output
    assert output.splitlines()[-1].startswith("run: ddp: peak 0.00 GiB fits into 72.0, and it sends 0.00 GiB a step")
    assert output.count("  fits") == 9


def made(strategy: str, *, peak: float, sent: float, moved: float = 0) -> Footprint:
    sizes: dict[str, Any] = dict.fromkeys(("parameters", "gradients", "optimizer", "working", "activations", "host"), 0)
    gib = 2**30
    return Footprint(
        strategy, {"name": strategy}, **sizes, peak=int(peak * gib), sent=int(sent * gib), moved=int(moved * gib)
    )


@pytest.mark.parametrize(
    ("footprints", "choice", "reason"),
    [
        ([made("a", peak=90, sent=1), made("b", peak=70, sent=3), made("c", peak=9, sent=2)], "b", "and simpler"),
        (
            [made("a", peak=90, sent=1), made("b", peak=70, sent=4), made("c", peak=9, sent=2)],
            "c",
            "the least of those",
        ),
        ([made("a", peak=90, sent=1), made("b", peak=20, sent=9, moved=1)], "b", "nothing fits without an offload"),
        ([made("a", peak=73, sent=1), made("b", peak=99, sent=1)], None, "none fits: a needs least, 73.00 GiB of 72.0"),
    ],
)
def test_the_recommended_one_sends_little_and_fits(
    footprints: list[Footprint], choice: str | None, reason: str
) -> None:
    found, why = recommend(footprints, memory=80 * 2**30)
    assert (found.strategy if found else None) == choice
    assert reason in why


def test_what_is_unknown_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "import torch\n"
        "class Own(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.inner = torch.nn.Embedding(300, 8)\n"
        "    def forward(self, tokens):\n"
        "        return self.inner(tokens)[: int(tokens.sum()) + int(self.inner.weight.sum())]\n"
        "def build_model(config):\n"
        "    return Own()\n"
    )
    arguments = [str(RECIPE), "--set", f"model={{module: {path}}}", "--gpu-memory", "80"]
    assert main(["footprint", *arguments]) == 0
    output = capsys.readouterr().out
    assert "note: activations and peak are unknown" in output
    assert "no strategy can be recommended" in output


def test_wrong_numbers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--gpus", "0"], ["--gpu-memory", "nan"], ["--gpus-per-node", "x"]):
        with pytest.raises(SystemExit) as caught:
            main(["footprint", str(RECIPE), *words])
        assert caught.value.code == 2
    assert "must be a number of GiB above 0" in capsys.readouterr().err


def test_a_precision_without_a_formula_is_refused() -> None:
    recipe = load(RECIPE)
    other = recipe.model_copy(update={"training": recipe.training.model_copy(update={"precision": "float64"})})
    with pytest.raises(ConfigError, match="predicts float32 and bf16"):
        Measured(other)
