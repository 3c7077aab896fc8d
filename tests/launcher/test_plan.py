"""What is refused before anything is connected to, and what becomes of a wish."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launcher import start
from launcher.errors import NoRunError, UsageError
from launcher.record import Runs
from launcher.tasks import DEFAULT_RECIPE, train


@pytest.fixture
def checkout(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a trainer whose check accepts `steps` only; we stand in it."""
    (root / "trainer" / "recipes").mkdir(parents=True)
    (root / "trainer" / "__init__.py").touch()  # without it, an installed trainer package would win
    (root / "trainer" / "__main__.py").write_text(
        "import sys\n"
        "bad = [a for a in sys.argv if '=' in a and a.split('=')[0] not in ('steps', 'experiment', 'output_dir')]\n"
        "if bad: sys.exit('recipes/demo.yaml: unknown key ' + bad[0])\n"
    )
    (root / "trainer" / "recipes" / "demo.yaml").write_text("experiment: demo-run\nsteps: 10\n")
    monkeypatch.chdir(root)
    return root


def test_a_recipe_gives_its_experiment_and_stays_relative_to_the_checkout(checkout: Path) -> None:
    plan = start.plan_recipe(checkout, "trainer/recipes/demo.yaml", settings=["steps=5"], name=None, world_size=4)
    assert (plan.experiment, plan.settings) == ("demo-run", ("steps=5",))
    assert plan.recipe_on_node == "trainer/recipes/demo.yaml"


def test_the_examples_in_the_help_are_accepted_by_the_trainer() -> None:
    root = Path(start.__file__).parents[1]
    settings = re.findall(r"Example: fab train .*--set (\S+)", train.__doc__ or "")
    assert settings
    start.plan_recipe(root, DEFAULT_RECIPE, settings=settings, name=None, world_size=4)


def test_a_recipe_from_elsewhere_goes_along(checkout: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("steps: 3\n")
    plan = start.plan_recipe(checkout, str(recipe), settings=[], name=None, world_size=4)
    assert (plan.experiment, plan.recipe_on_node, plan.extra) == ("mine", "mine.yaml", (recipe,))


@pytest.mark.parametrize("written", ["0123", "2026-12-01", "demo\r"])
def test_a_recipes_experiment_is_what_is_written_there(checkout: Path, written: str) -> None:
    (checkout / "trainer" / "recipes" / "demo.yaml").write_bytes(f"\ufeffexperiment: {written}\n".encode())
    plan = start.plan_recipe(checkout, "trainer/recipes/demo.yaml", settings=[], name=None, world_size=4)
    assert plan.experiment == written.strip()


def test_a_name_overrides_the_experiment(checkout: Path) -> None:
    plan = start.plan_recipe(checkout, "trainer/recipes/demo.yaml", settings=[], name="other", world_size=4)
    assert (plan.experiment, plan.settings) == ("other", ("experiment=other",))


@pytest.mark.parametrize(
    ("recipe", "settings", "name", "said"),
    [
        ("trainer/recipes/none.yaml", [], None, "there is no such file"),
        ("trainer/recipes/demo.yaml\r", [], None, r"demo.yaml\\r': there is no such file"),
        ("trainer/recipes/demo.yaml", ["stepz=5"], None, "unknown key stepz=5"),
        ("trainer/recipes/demo.yaml", ["steps"], None, "write --set key=value"),
        ("trainer/recipes/demo.yaml", ["output_dir=runs/x"], None, "make it absolute"),
        ("trainer/recipes/demo.yaml", [], "../../etc", "use letters, digits"),
    ],
)
def test_a_bad_recipe_is_refused_in_one_sentence(
    checkout: Path, recipe: str, settings: list[str], name: str | None, said: str
) -> None:
    with pytest.raises(UsageError, match=said) as error:
        start.plan_recipe(checkout, recipe, settings=settings, name=name, world_size=4)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)


def test_everything_that_the_trainer_refuses_is_told(checkout: Path) -> None:
    (checkout / "trainer" / "__main__.py").write_text(
        "import sys; print('this\\nthat', file=sys.stderr); sys.exit(2)\n"
    )
    with pytest.raises(UsageError, match=r"^this\nthat$"):
        start.plan_recipe(checkout, "trainer/recipes/demo.yaml", settings=[], name=None, world_size=4)


def test_a_script_that_is_missing_a_folder_or_among_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="doesn't exist"):
        start.plan_script(str(tmp_path / "none.py"), arguments=[], name=None)
    with pytest.raises(UsageError, match="is a folder"):
        start.plan_script(str(tmp_path), arguments=[], name=None)
    script = tmp_path / "train.py"
    script.write_text("")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "big").write_bytes(bytes(2_000_000))
    monkeypatch.setattr(start, "MAX_SCRIPT_FOLDER_MIB", 1)
    assert start.plan_script(str(script), arguments=["-v"], name=None).arguments == ("-v",)
    (tmp_path / "big").write_bytes(bytes(2_000_000))
    with pytest.raises(UsageError, match="folder of its own"):
        start.plan_script(str(script), arguments=[], name=None)


def test_a_run_that_nobody_knows_is_refused(root: Path) -> None:
    with pytest.raises(NoRunError, match="no run is called 'abc'"):
        Runs(root).load("abc")
    with pytest.raises(NoRunError, match="has no run yet"):
        Runs(root).latest("local")
