"""The stand-in for an engine's plug-in as an executable that the engine finds on PATH, and the environment for it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Container, Mapping
from pathlib import Path

from tests.stand_ins.schema import CACHE

ROOT = Path(__file__).resolve().parents[2]


def write_plugin(folder: Path, cloud: str) -> Path:
    """Make `pulumi-resource-aws` (or -gcp) in `folder`; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / f"pulumi-resource-{cloud}"
    script.write_text(
        "#!/bin/sh\n"
        f"export PYTHONPATH={shlex.quote(str(ROOT))} {CACHE}={shlex.quote(str(folder))}\n"
        f'exec {shlex.quote(sys.executable)} -P -u -m tests.stand_ins.{cloud}.plugin "$@"\n'
    )
    script.chmod(0o755)
    return folder


def environment(
    variables: Mapping[str, str], plugin_folder: Path, *, without: Container[str], base: Mapping[str, str] | None
) -> dict[str, str]:
    """`base` (default: our own environment) with `variables`, without what would lead elsewhere.

    Byte code is kept beside the plug-in: the SDKs take seconds to compile, at each of the engine's commands anew.
    """
    kept = {key: value for key, value in (os.environ if base is None else base).items() if key not in without}
    path = os.pathsep.join([str(plugin_folder), kept.get("PATH", os.defpath)])
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    return {**kept, **variables, "PATH": path, "PYTHONPYCACHEPREFIX": str(plugin_folder / "byte code")}
