"""The command line explains itself: each verb shows an example, and each key of a recipe says what it means."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.conftest import RECIPE, ROOT
from trainer import __main__ as command_line
from trainer.keys import keys


@pytest.mark.parametrize("words", [[], *([verb] for verb in command_line.VERBS)])
def test_every_help_has_an_example(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.main([*words, "--help"])
    assert ended.value.code == 0
    assert "example: " in capsys.readouterr().out


def test_every_key_has_a_meaning_and_a_name_of_its_own() -> None:
    found = {key.name: key for key in keys()}
    assert len(found) == len(keys())
    assert [name for name, key in found.items() if not key.meaning] == []
    assert found["training.steps"].default is None
    assert found["training.steps"].holds == "whole number from 1"
    assert json.loads(found["optimizer.betas"].default or "") == [0.9, 0.95]
    assert found["model.module"].default is None
    assert found["strategy.offload_optimizer"].holds == "none | cpu | nvme or null"


def test_keys_are_found_by_a_part_of_their_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["keys", "checkpoint.keep"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "checkpoint.keep",
        "checkpoint.keep_every_steps",
        "checkpoint.keep_best",
    ]
    assert command_line.main(["keys", "no_such_key"]) == 2
    assert "python -m trainer keys lists all" in capsys.readouterr().err


def test_without_a_locale_paths_and_keys_are_the_same_text_in_a_recipe_and_on_the_command_line(tmp_path: Path) -> None:
    folder = tmp_path / "ordner ä 漢"
    folder.mkdir()
    pairs, recipe = folder / "données.jsonl", folder / "récette.yaml"
    pairs.write_text("".join(f'{{"préfixe": "{number}", "response": "ü"}}\n' for number in range(40)), encoding="utf-8")
    data = f"source: jsonl, path: {pairs}, response_key: préfixe"
    recipe.write_text(RECIPE.read_text().replace("source: stdlib", data), encoding="utf-8")
    words = [sys.executable, "-m", "trainer", "baseline", str(recipe), "--set", "data.prompt_key=préfixe"]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    words[-1] = "data.prompt_key=préfix"
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, check=False)
    assert done.returncode == 5
    assert f"{pairs}:1: there is no key 'préfix' (keys here: préfixe, response)".encode() in done.stderr
