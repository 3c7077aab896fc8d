"""The recipe's checks: what a user can get wrong, and what the trainer says then."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.conftest import RECIPE, ROOT
from trainer.__main__ import main
from trainer.config import accumulation_steps
from trainer.errors import ConfigError
from trainer.recipe_file import load
from trainer.strategies import STRATEGIES

GOOD = RECIPE.read_text()


@pytest.mark.parametrize("name", ["demo", "smoke", "llama-1b"])
def test_every_recipe_that_we_ship_is_valid(name: str) -> None:
    assert load(RECIPE.with_name(f"{name}.yaml")).experiment == name


@pytest.mark.parametrize(
    ("override", "key", "expected"),
    [
        ("optimizer.learning_rate=1e-2", "learning_rate", 0.01),
        ("optimizer.betas=[0.8, '9e-1']", "betas", (0.8, 0.9)),
        ("optimizer.betas=[8e-1, 0.9]", "betas", (0.8, 0.9)),
    ],
)
def test_numbers_may_be_written_with_an_exponent(override: str, key: str, expected: object) -> None:
    assert getattr(load(RECIPE, [override]).optimizer, key) == expected


def test_whole_numbers_may_be_written_with_an_exponent() -> None:
    assert load(RECIPE, ["training.steps=1e3"]).training.steps == 1000


@pytest.mark.parametrize("name", ["demo", "smoke", "llama-1b"])
def test_every_number_of_a_recipe_may_be_written_with_an_exponent(tmp_path: Path, name: str) -> None:
    recipe = load(RECIPE.with_name(f"{name}.yaml"))
    path = tmp_path / "recipe.yaml"
    path.write_text(in_flow_style(recipe.model_dump(mode="json")))
    assert load(path) == recipe
    assert "e+00" in path.read_text()


def in_flow_style(value: object) -> str:
    """YAML with each number as 1.5e-03."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {in_flow_style(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(in_flow_style, value)) + "]"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:.15e}" if number else json.dumps(value)


def test_a_whole_number_keeps_all_its_digits() -> None:
    assert load(RECIPE, ["seed=9007199254740993"]).seed == 9007199254740993


@pytest.mark.parametrize("name", ["0123", "2026-12-01", "1e3"])
def test_a_name_is_taken_as_it_is_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(GOOD.replace("experiment: smoke", f"experiment: {name}"))
    assert load(path).experiment == name


def test_a_strategy_may_be_a_plain_name() -> None:
    assert load(RECIPE, ["strategy=ddp"]).strategy.name == "ddp"
    assert load(RECIPE, ["strategy=hsdp", "strategy.replicate=2"]).strategy.replicate == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=18446744073709551616", "--set seed: Input should be less than 18446744073709551616"),
        ("training.step=3", "did you mean 'steps'?"),
        ("steps=3", "did you mean 'training.steps'?"),
        ("training.steps=1.5", "whole number"),
        ("training.steps=0", "training.steps"),
        ("optimizer.learning_rate=nan", "finite"),
        ("optimizer.learning_rate=inf", "finite"),
        ("optimizer.learning_rate=fast", "must be a number"),
        ("strategy=fsdb", "did you mean 'fsdp'?"),
        ("strategy=fsdp ", "not 'fsdp '; did you mean 'fsdp'?"),
        ("optimizer.betas=" + "[" * 3000 + "]" * 3000, "not a valid YAML list"),
        ("model.heads=3", "multiple of"),
        ("experiment.name=x", "no keys below"),
        ("steps", "key=value"),
        ("data.source=path", "data.path"),
        ("optimizer.betas=[9e-1]", "--set optimizer.betas.1 is missing"),
        ("metrics.sinks=jsonl", "--set metrics.sinks must be a list such as [a, b], not 'jsonl'"),
        ("watch.stall_s=1e10", "--set watch.stall_s: Input should be less than or equal to 1000000000"),
        ("watch.grace_s=1e300", "--set watch.grace_s: Input should be less"),
        ("watch.max_duration=99999999d", "--set watch.max_duration: Input should be less"),
    ],
)
def test_a_wrong_override_is_refused_with_its_key(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(RECIPE, [override])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("experiment: smoke", "experiment: true"), "quote it"),
        (GOOD.replace("steps: 6", "steps: 6\n  precision: no"), "quote it"),
        (GOOD.replace("steps: 6", "steps: 012"), "octal"),
        (GOOD.replace("steps: 6", "steps: 12:30"), "must be a number, not '12:30'"),
        (GOOD.replace("steps: 6", "steps: 2026-13-45"), "must be a number"),
        (GOOD.replace("steps: 6", "steps: !!int six"), "not valid YAML"),
        (GOOD.replace("source: stdlib", "source: 'stdlib '"), "'stdlib '"),
        (GOOD + "\nexperiment: again\n", "given twice"),
        ("a: " + "[" * 3000 + "]" * 3000, "nested too deeply"),
        (GOOD.replace("steps: 6", "steps: .nan"), "training.steps"),
        ("[1, 2", "not valid YAML"),
        ("just text", "keys and values"),
        (GOOD.replace("strategy: fsdp", ""), "strategy is missing"),
        (GOOD.replace("steps: 6", "steps: x").replace("heads: 2", "headz: 2"), "model.headz"),
        (GOOD.replace("steps: 6", "steps: x").replace("heads: 2", "headz: 2"), "training.steps"),
    ],
)
def test_a_wrong_recipe_is_refused_with_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_from_a_windows_editor_is_read(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert load(path).experiment == "smoke"


def test_the_batch_must_divide_and_the_choices_are_named() -> None:
    assert accumulation_steps(load(RECIPE), 4) == 4
    with pytest.raises(ConfigError, match="1, 2, 4"):
        accumulation_steps(load(RECIPE, ["training.micro_batch_size=3"]), 4)
    with pytest.raises(ConfigError, match="multiple of 3"):
        accumulation_steps(load(RECIPE), 3)


def test_checking_needs_no_torch_and_says_one_sentence() -> None:
    probe = (
        "import sys; sys.modules['torch'] = None\n"
        "from trainer.__main__ import main\n"
        "shards = ['--set', 'data.source=shards', '--set', 'data.path=/nowhere']\n"
        f"assert main([{str(RECIPE)!r}, '--check', *shards]) == 0\n"
        f"sys.exit(main([{str(RECIPE)!r}, '--check', '--set', 'training.stepz=1']))"
    )
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "there is no /nowhere on this machine, so the data is not checked" in done.stdout
    assert "stepz" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_rank_other_than_the_first_says_what_is_wrong_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "3")
    assert main([str(RECIPE), "--set", "training.stepz=1"]) == 2
    assert "stepz" in capsys.readouterr().err


def test_no_file_outside_the_registry_branches_on_a_strategy_name() -> None:
    names = [f'"{name}"' for name in STRATEGIES]
    for path in (ROOT / "trainer").rglob("*.py"):
        if path.parent.name != "strategies":
            assert not [name for name in names if name in path.read_text()], path


@pytest.mark.parametrize(
    ("overrides", "vocabulary"),
    [([], 256), (["data.source=path", "data.path=."], 100), (["data.source=jsonl", "data.path=x.jsonl"], 1)],
)
def test_bytes_in_a_smaller_vocabulary_are_refused_with_the_recipe(overrides: list[str], vocabulary: int) -> None:
    with pytest.raises(ConfigError, match=f"model.vocabulary {vocabulary} is too small: data of bytes has 257 ids"):
        load(RECIPE, [f"model.vocabulary={vocabulary}", *overrides])


def test_an_option_beyond_every_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="1e999 is too large a number"):
        load(RECIPE, ["model={module: own.py, options: {rate: 1e999}}"])
