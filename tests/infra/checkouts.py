"""A checkout of its own for tests that drive the real engine: this one's files, this one's .venv, its own state."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from infra.pulumi_engine.layout import environment

ROOT = Path(__file__).resolve().parents[2]
_PARTS = ("infra", "Pulumi.yaml", "__main__.py", "stacks")


class Checkout:
    """`environment` is added to every command's: where the stand-in is, and its plug-in first on PATH."""

    def __init__(self, path: Path, variables: Mapping[str, str]) -> None:
        self.path = path
        self._variables = dict(variables)
        path.mkdir(parents=True)
        for part in _PARTS:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, path / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, path / part)
        (path / ".venv").symlink_to(sys.prefix)
        self.python("-m", "infra.pulumi_engine", code=0)

    def environment(self) -> dict[str, str]:
        made = environment(self.path, {**os.environ, **self._variables})
        # .venv's own path file names the other checkout.
        # The clouds' SDKs take seconds to compile, at each command anew where byte code isn't kept.
        made.pop("PYTHONDONTWRITEBYTECODE", None)
        byte_code = str(ROOT / ".trainstack" / "test_byte_code")
        return {**made, "PYTHONPATH": str(self.path), "PYTHONPYCACHEPREFIX": byte_code}

    def cluster(self, stack: str, **spec: object) -> None:
        """Write the stack file, and make the stack if it isn't there."""
        file = self.path / "stacks" / f"Pulumi.{stack}.yaml"
        kept = yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else {}
        salt = {key: value for key, value in kept.items() if key == "encryptionsalt"}
        file.write_text(yaml.safe_dump({**salt, "config": {"trainstack:cluster": spec}}), encoding="utf-8")
        self.pulumi("stack", "select", "--create", "--stack", stack, code=0)

    def pulumi(self, *arguments: str, code: int | None = None) -> subprocess.CompletedProcess[str]:
        return self._run([str(self.path / ".trainstack" / "bin" / "pulumi"), *arguments, "--non-interactive"], code)

    def up(self, stack: str, *, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        return self.pulumi("up", "--yes", "--skip-preview", "--stack", stack, code=code)

    def python(self, *arguments: str, code: int | None = None) -> subprocess.CompletedProcess[str]:
        return self._run([str(self.path / ".venv" / "bin" / "python"), *arguments], code)

    def leftovers(self, stack: str, *, code: int | None = None) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "infra.leftovers", "--stack", stack, code=code)

    def destroy(self, stack: str, *, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "infra.destroy", "--stack", stack, code=code)

    def output(self, stack: str) -> dict[str, Any]:
        said = self.pulumi("stack", "output", "cluster", "--json", "--stack", stack, code=0).stdout
        return dict(json.loads(said))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """`pulumi …`, left running in a process group of its own."""
        return subprocess.Popen(
            [str(self.path / ".trainstack" / "bin" / "pulumi"), *arguments, "--non-interactive"],
            cwd=self.path,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def _run(self, argv: list[str], code: int | None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            argv,
            cwd=self.path,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=300,
            check=False,
        )
        said = f"{' '.join(argv)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert code is None or done.returncode == code, said
        return done
