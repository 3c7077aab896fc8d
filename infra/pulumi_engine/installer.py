"""Puts a Pulumi CLI into <root>/.trainstack/bin: the first source that has one, else the first that can get one."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from infra.errors import EngineError
from infra.pulumi_engine.files import copy_atomically, link_atomically, write_atomically
from infra.pulumi_engine.go_modules import GoModules
from infra.pulumi_engine.layout import bin_folder, find_pulumi, venv_folder, write_shell_variables
from infra.pulumi_engine.sources import (
    PROGRAMS,
    Engine,
    OfficialInstaller,
    OnPath,
    Report,
    Source,
    Unavailable,
)

REMEDY = (
    "connect this machine to get.pulumi.com or to a Go module proxy and PyPI, "
    "or install Pulumi by yourself (https://www.pulumi.com/docs/install/), and run `make setup` again"
)


def install(root: Path, report: Report = print, *, sources: Sequence[Source] | None = None) -> Path:
    """Make `find_pulumi(root)` work, and return its answer.

    The sources are asked in order; what one has on the machine already is taken before another goes to the network.
    Raises EngineError with each source's reason when none has an engine.
    """
    root = root.resolve()
    engine = _choose([OnPath(), OfficialInstaller(), GoModules()] if sources is None else sources, report)
    try:
        _place(engine, root)
        write_shell_variables(root)
    except OSError as error:
        raise EngineError(
            f"{bin_folder(root)} can't be written ({error.strerror or error}): make it writable."
        ) from error
    return find_pulumi(root)


def _choose(sources: Sequence[Source], report: Report) -> Engine:
    for source in sources:
        found = source.find()
        if found is not None:
            report(f"pulumi {found.version}: {found.programs['pulumi']}")
            return found
    reasons = []
    for source in sources:
        try:
            return source.get(report)
        except Unavailable as reason:
            reasons.append(f"{source.name} ({reason})")
            report(f"not from {source.name}: {reason}")
    raise EngineError(f"There is no way to a Pulumi engine here; tried {', '.join(reasons)}: {REMEDY}.")


def _place(engine: Engine, root: Path) -> None:
    """Links to the engine's programs; with our language host, wrappers that name this checkout's interpreter."""
    folder = bin_folder(root)
    folder.mkdir(parents=True, exist_ok=True)
    wrappers: dict[str, list[str]] = {}
    if engine.exec_script is not None:
        python = str(venv_folder(root) / "bin" / "python")
        here = Path(__file__).parent
        # -P: this folder stays off the import path.
        wrappers["pulumi-language-python"] = [
            python,
            "-P",
            "-u",
            str(here / "language_host.py"),
            str(engine.exec_script),
        ]
        wrappers["pulumi-resource-pulumi-python"] = [python, "-P", "-u", str(here / "dynamic_provider.py")]
    for name, target in engine.programs.items():
        # The engine warns of a language host that isn't beside its own executable, as found through links.
        place = copy_atomically if wrappers else link_atomically
        place(folder / name, target)
    for name, command in wrappers.items():
        script = f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n'
        write_atomically(folder / name, script.encode(), mode=0o755)
    for name in PROGRAMS:
        if name not in engine.programs and name not in wrappers:
            (folder / name).unlink(missing_ok=True)
