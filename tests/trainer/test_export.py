"""From a checkpoint to a folder that transformers opens with equal logits, and from such a folder to a run."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.trainer import checkpoint_jobs as jobs
from tests.trainer.conftest import RECIPE
from trainer.__main__ import main
from trainer.distributed import processes
from trainer.errors import ConfigError
from trainer.export import export
from trainer.initial_weights import initialise
from trainer.models.llama import Llama
from trainer.recipe_file import load

TOKENS = torch.randint(0, 257, (2, 16), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    """A run's folder, and the logits of its model at its last checkpoint."""
    output = tmp_path_factory.mktemp("run")
    recipe = load(RECIPE, ["strategy=single", "model.layers=2", f"model.tie_embeddings={json.dumps(request.param)}"])
    with processes() as here:
        strategy = jobs.prepared(here, recipe)
        kept = jobs.checkpoints(here, output)
        for step in (1, 2):
            jobs.step(strategy, step)
            kept.save(step, strategy, facts={**jobs.FACTS, "config": recipe.model_dump(mode="json")})
        kept.wait()
        kept.close()
        with torch.no_grad():
            return output, strategy.module(TOKENS)


def theirs(folder: Path) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert type(model).__name__ == "LlamaForCausalLM"
    with torch.no_grad():
        logits: torch.Tensor = model(TOKENS).logits
    return logits


def test_transformers_opens_it_with_equal_logits(run: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    output, logits = run
    assert main(["export", str(output), "--to", str(tmp_path / "out")]) == 0
    assert torch.allclose(theirs(tmp_path / "out"), logits, atol=1e-5)
    assert [path.name for path in (tmp_path / "out").glob("*.safetensors")] == ["model.safetensors"]


def test_it_is_divided_into_files_and_comes_back_as_it_was(run: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    output, logits = run
    export(str(output), tmp_path / "out", limit=50_000)
    names = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert len(names) > 2
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    for name in names:
        with safe_open(tmp_path / "out" / name, framework="pt") as file:
            assert set(file.keys()) == {key for key, place in index["weight_map"].items() if place == name}
    assert torch.allclose(theirs(tmp_path / "out"), logits, atol=1e-5)
    section = load(RECIPE, ["model.layers=2"]).model
    again = section.model_copy(update={"tie_embeddings": "lm_head.weight" not in index["weight_map"]})
    model = Llama(again)
    initialise(model, again, tmp_path / "out")
    with torch.no_grad():
        assert torch.equal(model(TOKENS), logits)


def test_an_older_step_in_half_the_bytes(run: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    output, logits = run
    assert main(["export", str(output), "--to", str(tmp_path / "out"), "--step", "1", "--dtype", "bf16"]) == 0
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}  # noqa: SIM118
    assert not torch.allclose(theirs(tmp_path / "out"), logits, atol=1e-5)
    assert torch.allclose(theirs(tmp_path / "out"), logits, atol=0.1)


def test_what_cannot_be_exported_is_refused_in_one_sentence(
    run: tuple[Path, torch.Tensor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, _ = run
    assert main(["export", str(output), "--to", str(output)]) == 2
    assert "not empty" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "nothing"), "--to", str(tmp_path / "out")]) == 3
    assert main(["export", str(output), "--step", "9", "--to", str(tmp_path / "out")]) == 3
    assert "no checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_model_is_refused_with_the_key(run: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    output, _ = run
    export(str(output), tmp_path / "out")
    section = load(RECIPE, ["model.layers=2"]).model
    tied = json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"]
    section = section.model_copy(update={"tie_embeddings": tied})
    wrong = section.model_copy(update={"rope_theta": 5e5})
    with pytest.raises(ConfigError, match=r"model\.rope_theta 10000.0, and the recipe 500000.0"):
        initialise(Llama(wrong), wrong, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"config\.json"):
        initialise(Llama(section), section, tmp_path / "nowhere")
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "out" / "model.safetensors")
    with pytest.raises(ConfigError, match=r"lacks norm\.weight"):
        initialise(Llama(section), section, tmp_path / "out")
    (tmp_path / "out" / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(ConfigError, match="damaged"):
        initialise(Llama(section), section, tmp_path / "out")
