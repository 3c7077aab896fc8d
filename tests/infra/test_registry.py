"""Every provider module is registered and complete; importing the registry imports none of them."""

from __future__ import annotations

import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from infra import providers
from infra.errors import SpecError
from infra.providers.base import Deployment, Provider

ROOT = Path(__file__).resolve().parents[2]
VERBS = ("preflight", "create", "price", "leftovers", "remove")


def test_every_module_of_the_package_is_registered() -> None:
    found = {module.name for module in pkgutil.iter_modules(providers.__path__)} - {"base"}
    assert found == {path.rpartition(".")[2] for path in providers.MODULES.values()}


@pytest.mark.parametrize("name", sorted(providers.MODULES))
def test_a_provider_has_the_verbs_a_stack_file_and_a_docstring(name: str) -> None:
    provider = providers.load(name)
    for verb in VERBS:
        wanted = list(inspect.signature(getattr(Provider, verb)).parameters)[1:]
        assert list(inspect.signature(getattr(provider, verb)).parameters) == wanted, verb
    assert sys.modules[providers.MODULES[name]].__doc__
    assert (ROOT / "stacks" / f"Pulumi.{name}.yaml").is_file()


def test_an_unknown_provider_is_answered_with_those_there_are() -> None:
    with pytest.raises(SpecError, match="local"):
        providers.load("lcoal")


def test_looking_for_leftovers_does_not_import_pulumi() -> None:
    program = "import sys, infra.leftovers, infra.providers as p; p.load('local'); sys.exit('pulumi' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


def test_names_fit_the_system_whatever_the_stack_is_called(root: Path) -> None:
    from infra.providers.local.layout import Layout

    names = {Layout(Deployment(root=root, stack=stack)).link for stack in ("a", "A.b-c_d", "x" * 128)}
    assert len(names) == 3
    assert all(len(name) <= 15 for name in names)
