"""What must not be committed, though the tools write it into files that are."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.infra.checkouts import ROOT


def test_stack_files_are_committed_without_a_salt_of_their_own() -> None:
    """`pulumi stack init` writes the salt of the user's passphrase there: with a shared one, a passphrase is guessed
    for all clones at once, and another passphrase is refused."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    command = ["git", "grep", "--name-only", "encryptionsalt", "HEAD", "--", "stacks"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (1, ""), found.stderr
