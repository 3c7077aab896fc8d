"""`source ./activate` in a shell and environment() in Python say the same, wherever the checkout is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from infra.errors import EngineError
from infra.pulumi_engine import environment, find_pulumi
from infra.pulumi_engine.layout import bin_folder, write_shell_variables

ROOT = Path(__file__).resolve().parents[2]
SHELLS = [pytest.param(name, marks=pytest.mark.skipif(not shutil.which(name), reason=name)) for name in ("bash", "zsh")]
OF_ANOTHER_PROJECT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/nowhere",
    "PULUMI_BACKEND_URL": "s3://another",
    "PULUMI_HOME": "/another/home",
    "PULUMI_CONFIG_PASSPHRASE": "another",
    "PULUMI_STACK": "chosen",
    "VIRTUAL_ENV": "/another/venv",
    "PYTHONHOME": "/another/python",
    "PYTHONUTF8": "0",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What `make setup` leaves behind, as far as a shell looks at it."""
    root = tmp_path / "mein Ordner é 'q' #1%20$HOME"
    for program in (
        root / ".venv/bin/python",
        bin_folder(root) / "pulumi",
        bin_folder(root) / "pulumi-language-python",
    ):
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    shutil.copy(ROOT / "activate", root)
    write_shell_variables(root)
    return root


def in_shell(shell: str, script: str, *arguments: Path, folder: Path = Path("/")) -> subprocess.CompletedProcess[str]:
    program = shutil.which(shell) or shell
    return subprocess.run(
        [program, "-c", script, shell, *map(str, arguments)],
        env=OF_ANOTHER_PROJECT,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def variables_after(shell: str, script: str, checkout: Path) -> dict[str, str]:
    dump = 'env -0; echo; echo "exit code $?"'
    done = in_shell(shell, f"set -eu\n{script}\n{dump}", checkout)
    assert done.returncode == 0, done.stderr
    pairs = (entry.split("=", 1) for entry in done.stdout.split("\0") if "=" in entry)
    # What a shell sets by itself.
    return {name: value for name, value in pairs if name not in ("_", "SHLVL", "PWD", "OLDPWD", "LOGNAME")}


@pytest.mark.parametrize("shell", SHELLS)
def test_activate_and_python_agree_on_every_variable(shell: str, checkout: Path) -> None:
    assert variables_after(shell, '. "$1/activate"', checkout) == environment(checkout, OF_ANOTHER_PROJECT)


@pytest.mark.parametrize("shell", SHELLS)
def test_activate_twice_is_the_same_as_once(shell: str, checkout: Path) -> None:
    once = variables_after(shell, '. "$1/activate"', checkout)
    assert variables_after(shell, '. "$1/activate"; . "$1/activate"', checkout) == once
    assert environment(checkout, once) == once


@pytest.mark.parametrize("shell", SHELLS)
def test_after_activate_python_reads_and_writes_utf_8_in_any_locale(shell: str, checkout: Path) -> None:
    script = f'. "$1/activate"; LC_ALL=C "{sys.executable}" -c "import sys; print(sys.argv[1])" "$1"'
    done = in_shell(shell, script, checkout)
    assert (done.stdout, done.stderr) == (f"{checkout}\n", "")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_line_of_the_readme_finds_ours_though_another_activate_is_on_the_path(shell: str, checkout: Path) -> None:
    """conda, pyenv-virtualenv and every active virtual environment put one there."""
    others = checkout / "others"
    others.mkdir()
    (others / "activate").write_text("OF_ANOTHER=yes\n")
    line = next(line for line in (ROOT / "README.md").read_text("utf-8").splitlines() if line.startswith("source "))
    done = in_shell(
        shell, f'PATH="$1:$PATH"\n{line}\necho "${{OF_ANOTHER:-}}|$(command -v pulumi)"', others, folder=checkout
    )
    assert done.stdout.strip() == f"|{bin_folder(checkout) / 'pulumi'}", done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_activate_before_setup_says_make_setup_and_changes_nothing(shell: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "activate", tmp_path)
    done = in_shell(shell, '. "$1/activate"; echo "$? $PATH $PULUMI_BACKEND_URL"', tmp_path)
    assert done.stdout.strip() == "1 /usr/bin:/bin s3://another"
    assert "make setup" in done.stderr
    assert str(tmp_path) in done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_activate_in_a_moved_checkout_says_make_setup_and_changes_nothing(shell: str, checkout: Path) -> None:
    moved = checkout.rename(checkout.with_name("moved"))
    done = in_shell(shell, '. "$1/activate"; echo "$? $PATH $PULUMI_BACKEND_URL"', moved)
    assert done.stdout.strip() == "1 /usr/bin:/bin s3://another"
    assert "moved" in done.stderr
    assert "make setup" in done.stderr


def test_our_own_environment_is_left_alone(checkout: Path) -> None:
    before = dict(os.environ)
    environment(checkout)
    assert dict(os.environ) == before


def test_find_pulumi_gives_the_program_of_a_checkout_that_is_set_up(checkout: Path) -> None:
    assert find_pulumi(checkout) == bin_folder(checkout) / "pulumi"


@pytest.mark.parametrize("missing", ["pulumi", "pulumi-language-python"])
def test_find_pulumi_without_the_engine_says_make_setup(checkout: Path, missing: str) -> None:
    (bin_folder(checkout) / missing).unlink()
    with pytest.raises(EngineError, match="make setup"):
        find_pulumi(checkout)


def test_find_pulumi_in_a_moved_checkout_says_make_setup(checkout: Path) -> None:
    with pytest.raises(EngineError, match=r"moved .* `make setup`"):
        find_pulumi(checkout.rename(checkout.with_name("moved")))


def test_the_module_has_help_with_an_example() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "infra.pulumi_engine", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "example: python -m infra.pulumi_engine" in done.stdout
