"""What stands after `--` belongs to the task, not to Fabric."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
FABFILE = """
from invoke.tasks import task
from bootstrap.arguments import after_dashes

after_dashes()

@task
def show(context, word=""):
    print([word, *after_dashes()])
"""


def fab(folder: Path, *words: str) -> str:
    (folder / "fabfile.py").write_text(FABFILE)
    command = [sys.executable, "-m", "fabric", *words]
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    return done.stdout + done.stderr


def test_words_after_the_dashes_arrive_one_by_one(tmp_path: Path) -> None:
    said = fab(tmp_path, "show", "--word", "x", "--", "a b", "--epochs", "--", "$HOME")
    assert said == "['x', 'a b', '--epochs', '--', '$HOME']\n"


def test_without_dashes_there_are_none(tmp_path: Path) -> None:
    assert fab(tmp_path, "show") == "['']\n"
