"""What stands after `--` belongs to the task, not to Fabric."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
FABFILE = """
from invoke.tasks import task
from bootstrap.arguments import after_dashes, refuse_what_cannot_be_read

after_dashes()
refuse_what_cannot_be_read()

@task
def show(context, word="", number=1):
    print([word, *after_dashes()])
"""


def fab(folder: Path, *words: str, exit_code: int = 0) -> str:
    (folder / "fabfile.py").write_text(FABFILE)
    command = [sys.executable, "-m", "fabric", *words]
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == exit_code, done.stderr
    return done.stdout + done.stderr


def test_words_after_the_dashes_arrive_one_by_one(tmp_path: Path) -> None:
    said = fab(tmp_path, "show", "--word", "x", "--", "a b", "--epochs", "--", "$HOME")
    assert said == "['x', 'a b', '--epochs', '--', '$HOME']\n"


def test_without_dashes_there_are_none(tmp_path: Path) -> None:
    assert fab(tmp_path, "show") == "['']\n"


@pytest.mark.parametrize(
    "words", [["nothing"], ["show", "--wrod", "x"], ["show", "--word"], ["show", "--number", "x"], ["show", "node-1"]]
)
def test_what_cannot_be_read_is_one_sentence_and_bad_input(tmp_path: Path, words: list[str]) -> None:
    said = fab(tmp_path, *words, exit_code=2)
    assert said.startswith("error: ")
    assert "fab --help" in said
    assert said.count("\n") == 1
