"""A Pulumi project of a test's own under the real engine; skips the test where there is no engine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from infra.errors import EngineError
from infra.pulumi_engine import find_pulumi
from tests.stand_ins.on_path import ROOT


class Project:
    """With its own state, on the engine that `make setup` built. `variables`: the whole environment."""

    def __init__(self, folder: Path, variables: Mapping[str, str], program: str) -> None:
        try:
            self._engine = find_pulumi(ROOT)
        except EngineError as error:
            pytest.skip(str(error))
        self.folder = folder
        folder.mkdir()
        (folder / "Pulumi.yaml").write_text("name: trial\nruntime: {name: python, options: {virtualenv: .venv}}\n")
        (folder / ".venv").symlink_to(sys.prefix)
        (folder / "passphrase").write_text("not a secret")
        (folder / "state").mkdir()
        (folder / "__main__.py").write_text(program)
        self.environment = {
            **variables,
            "PULUMI_BACKEND_URL": f"file://{folder}/state",
            "PULUMI_CONFIG_PASSPHRASE_FILE": str(folder / "passphrase"),
            "PULUMI_HOME": str(folder / "home"),
        }
        self.pulumi("stack", "init", "dev")

    def pulumi(self, *arguments: str, code: int = 0) -> str:
        """What it printed; `code` other than 0 means that it must fail."""
        done = subprocess.run(
            [self._engine, *arguments, "--non-interactive"],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        said = done.stdout + done.stderr
        assert (done.returncode != 0) == (code != 0), said
        return said
