"""`fab choose` as a process of its own, with the real trainer and without the internet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.infra.checkouts import ROOT
from tests.infra.offering import OFFLINE

RECIPE = str(ROOT / "trainer" / "recipes" / "demo.yaml")


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """Of a machine without the internet and without any provider's key."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LAMBDA_", "GPUHUNT_", "VAST_"))}
    return {**kept, **OFFLINE, "HOME": str(tmp_path), "NO_COLOR": "1"}


def choose(variables: dict[str, str], *words: str, code: int = 0) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "fabric", "choose", *words],
        cwd=ROOT,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=180,
        check=False,
    )
    assert done.returncode == code, done
    return done.stdout, done.stderr


def test_a_recipe_gets_rows_with_figures_and_what_was_assumed(variables: dict[str, str]) -> None:
    out, err = choose(variables, RECIPE, "--gpu", "L4", "--count", "1", "--nodes", "1,2", "--mfu", "0.4", "--json")
    told = json.loads(out)
    assert told["assumed"]["mfu"] == 0.4
    assert {row["gpu_model"] for row in told["rows"]} == {"L4"}
    assert {row["nodes"] for row in told["rows"]} == {1, 2}
    known = [row["usd"] for row in told["rows"] if row["usd"] is not None]
    assert known == sorted(known)
    assert all(row["strategy"]["name"] in ("single", "ddp") for row in told["rows"])
    assert "asking the trainer what fits" in err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["no-such.yaml"], 2, "no-such.yaml"),
        ([RECIPE, "--provider", "azure"], 2, "--provider 'azure' isn't one that this version rents from: take aws"),
        ([RECIPE, "--gpu", "H100", "--count", "3"], 11, "no machine fits what was asked for"),
    ],
)
def test_what_can_not_be_is_one_sentence(words: list[str], code: int, said: str, variables: dict[str, str]) -> None:
    _, err = choose(variables, *words, code=code)
    assert said in err.splitlines()[-1]
