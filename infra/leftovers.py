"""What is still there of a stack, by the provider's own answer and never by our state; and its removal.

`fab leftovers`, `python -m infra.leftovers` and the end of `make destroy` all come here.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import shlex
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from infra import providers
from infra.errors import AccessError, EngineError, InfraError, LeftoversError, ProviderError
from infra.gang_record import provider_of
from infra.providers.base import Deployment, IncompleteError, Leftover, Provider
from infra.spec import CONFIG_KEY, read_config
from infra.stack import DEFAULT_STACK, checked_stack_name, current_stack, project_root

_SWEEPS = 3  # what is removed may uncover more (a process that started another meanwhile)
_AT_ONCE = 8  # a cloud's machines take minutes to end, each


def find(root: Path, stack: str) -> list[Leftover]:
    """All that is there of `stack`, in the order of removal, whoever made it."""
    return [each for _, each in _found(Deployment(root=root, stack=checked_stack_name(stack)))]


def _found(deployment: Deployment) -> list[tuple[Provider, Leftover]]:
    """All of it; raises what a provider said that can't tell."""
    found, refused = _asked(deployment)
    if refused:
        raise refused[0]
    return found


def _asked(deployment: Deployment) -> tuple[list[tuple[Provider, Leftover]], list[ProviderError]]:
    """What is there of every provider that may have something, and what those said that can't tell."""
    found: list[tuple[Provider, Leftover]] = []
    refused: list[ProviderError] = []
    named = _named(deployment)
    for name in named or sorted(providers.MODULES):
        provider = providers.load(name)
        try:
            found += [(provider, each) for each in provider.leftovers(deployment)]
        except ProviderError as error:
            if isinstance(error, IncompleteError):
                found += [(provider, each) for each in error.found]
            if not isinstance(error, AccessError) or named or name == provider_of(deployment.gang_folder):
                refused.append(error)
            else:
                # Neither a stack file nor a record of machines says that this provider was used at all.
                _note(deployment, f"note: {name} could not be asked: {error}")
    return found, refused


@functools.cache
def _note(_whose: Deployment, line: str) -> None:
    """Once a command, however often the providers are asked."""
    print(line, file=sys.stderr)


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
    raise LeftoversError(
        f"stack {stack}: {len(found)} thing(s) are there; if it isn't in use, remove them: {_removal(stack)}"
    )


def sweep(root: Path, stack: str) -> LeftoversError | None:
    """Remove everything of `stack` that this checkout made; raises LeftoversError while any of it is left.

    What another checkout made under the same name (Leftover.is_ours) is told and left alone; the error says so.
    """
    deployment = Deployment(root=root, stack=checked_stack_name(stack))
    told = _sweep(deployment, lambda leftover: leftover.is_ours)
    if others := [each for _, each in _found(deployment) if not each.is_ours]:
        print(f"stack {stack}: nothing of this checkout's is left{told}")
        print(table(others))
        return LeftoversError(
            f"{len(others)} thing(s) of a stack {stack} are another checkout's (or of this one before its .trainstack "
            f"was lost), and were left alone; if they are yours: {_removal(stack)}"
        )
    print(f"stack {stack}: nothing is left{told}")
    return None


def sweep_all(root: Path, stack: str) -> None:
    """Remove everything that bears the stack's name, whoever made it; raises LeftoversError while any of it is left."""
    told = _sweep(Deployment(root=root, stack=checked_stack_name(stack)), lambda _leftover: True)
    print(f"stack {stack}: nothing is left{told}")


def end_machines(root: Path, stack: str) -> list[str]:
    """End this checkout's machines of `stack`, before all else; what could not be ended, a sentence each.

    One provider that can't tell doesn't keep another's machines alive. Raises what it said where there are no others.
    """
    deployment = Deployment(root=root, stack=checked_stack_name(stack))
    found, refused = _asked(deployment)
    if refused and not found:
        raise refused[0]
    machines = [(whose, each) for whose, each in found if each.is_machine and each.is_ours]
    if machines:
        print(f"stack {stack}: ending {len(machines)} machine(s)", flush=True)
    return [*map(str, refused), *_remove(deployment, machines)[1]]


def _sweep(deployment: Deployment, wanted: Callable[[Leftover], bool]) -> str:
    """What to say of it, in parentheses. One failure doesn't hide the others."""
    stack = deployment.stack
    removed, problems = 0, list[str]()
    for _ in range(_SWEEPS):
        found, refused = _asked(deployment)
        ended, problems = _remove(deployment, [(whose, each) for whose, each in found if wanted(each)])
        removed += ended
        if refused:
            raise refused[0]
        left = [each for _, each in _found(deployment) if wanted(each)]
        if not left:
            return f" ({removed} thing(s) removed by the sweep)" if removed else ""
    print(table(left))
    raise LeftoversError(
        f"stack {stack}: {len(left)} thing(s) could not be removed ({'; '.join(problems) or 'they came back'}): "
        "end them by hand, then run `fab leftovers` again"
    )


def _remove(deployment: Deployment, found: list[tuple[Provider, Leftover]]) -> tuple[int, list[str]]:
    """How many were removed, and what stood in the way of the others. Kind after kind: one needs the other gone."""

    def one(it: tuple[Provider, Leftover]) -> str | None:
        try:
            it[0].remove(it[1], deployment)
        except ProviderError as error:
            return str(error)
        return None

    said: list[str | None] = []
    for _, kind in itertools.groupby(found, key=lambda it: it[1].kind):
        with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
            said += pool.map(one, list(kind))
    problems = [sentence for sentence in said if sentence is not None]
    return len(said) - len(problems), problems


def _removal(stack: str) -> str:
    return shlex.join(["fab", "leftovers", "--stack", stack, "--remove"])


def _named(deployment: Deployment) -> list[str]:
    """The providers that the stack file and the record of its machines name; none when the file doesn't say."""
    cluster = read_config(deployment.stack_file).get(f"{deployment.project}:{CONFIG_KEY}")
    name = cluster.get("provider") if isinstance(cluster, dict) else None
    if not isinstance(name, str) or name not in providers.MODULES:
        return []
    recorded = provider_of(deployment.gang_folder)
    return list(dict.fromkeys([name, *([recorded] if recorded in providers.MODULES else [])]))


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
        (sweep_all if options.remove else check)(root, stack_or_current(root, options.stack))
    except InfraError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main())
