"""What is still there of a stack, by the provider's own answer and never by our state; and its removal.

`fab leftovers`, `python -m infra.leftovers` and the end of `make destroy` all come here.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

import yaml

from infra import providers
from infra.errors import EngineError, InfraError, LeftoversError, ProviderError
from infra.providers.base import Deployment, Leftover
from infra.spec import CONFIG_KEY
from infra.stack import DEFAULT_STACK, checked_stack_name, current_stack, project_root

_SWEEPS = 3  # what is removed may uncover more (a process that started another meanwhile)


def find(root: Path, stack: str) -> list[Leftover]:
    """All that is there of `stack`, in the order of removal."""
    deployment = Deployment(root=root, stack=checked_stack_name(stack))
    return [each for name in _asked(deployment) for each in providers.load(name).leftovers(deployment)]


def table(found: list[Leftover]) -> str:
    """A line for each thing: kind, id, $/h, detail."""
    rows = [("KIND", "ID", "$/H", "DETAIL")]
    rows += [
        (each.kind, each.id, "unknown" if each.usd_per_hour is None else f"{each.usd_per_hour:.2f}", each.detail)
        for each in found
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in rows
    )


def check(root: Path, stack: str) -> None:
    """Print what is there; raises LeftoversError, with the command that removes it, when that isn't nothing."""
    found = find(root, stack)
    if not found:
        print(f"stack {stack}: nothing is left")
        if not (file := Deployment(root=root, stack=stack).stack_file).exists():
            print(f"note: there is no {file}: was another stack meant?", file=sys.stderr)
        return
    print(table(found))
    removal = shlex.join(["fab", "leftovers", "--stack", stack, "--remove"])
    raise LeftoversError(f"stack {stack}: {len(found)} thing(s) are there; if it isn't in use, remove them: {removal}")


def sweep(root: Path, stack: str) -> None:
    """Remove everything of `stack`, one failure not hiding the others; raises LeftoversError while anything is left."""
    deployment = Deployment(root=root, stack=checked_stack_name(stack))
    removed, problems = 0, list[str]()
    for _ in range(_SWEEPS):
        problems = []
        for name in _asked(deployment):
            provider = providers.load(name)
            for leftover in provider.leftovers(deployment):
                try:
                    provider.remove(leftover, deployment)
                    removed += 1
                except ProviderError as error:
                    problems.append(str(error))
        left = find(root, stack)
        if not left:
            print(
                f"stack {stack}: nothing is left" + (f" ({removed} thing(s) removed by the sweep)" if removed else "")
            )
            return
    print(table(left))
    raise LeftoversError(
        f"stack {stack}: {len(left)} thing(s) could not be removed ({'; '.join(problems) or 'they came back'}): "
        "end them by hand, then run `fab leftovers` again"
    )


def _asked(deployment: Deployment) -> list[str]:
    """The provider that the stack file names; every one when it doesn't say (no file, broken file)."""
    try:
        content = yaml.safe_load(deployment.stack_file.read_text(encoding="utf-8-sig"))
        name = content["config"][f"{deployment.project}:{CONFIG_KEY}"]["provider"]
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError):
        return sorted(providers.MODULES)
    return [name] if name in providers.MODULES else sorted(providers.MODULES)


def stack_or_current(root: Path, stack: str | None) -> str:
    """`stack`, else the current one; "local" where the engine can't be asked, since this check must not need it."""
    if stack:
        return stack
    try:
        return current_stack(root)
    except EngineError:
        return DEFAULT_STACK


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m infra.leftovers",
        description="Ask the provider itself what is still there of a stack; exit 6 while anything is.",
        epilog="example: python -m infra.leftovers --stack local --remove",
    )
    parser.add_argument("--stack", help="stack name (default: the selected one)")
    parser.add_argument("--remove", action="store_true", help="remove what is found")
    options = parser.parse_args()
    root = project_root()
    try:
        (sweep if options.remove else check)(root, stack_or_current(root, options.stack))
    except InfraError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main())
