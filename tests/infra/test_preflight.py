"""What the local provider says before anything is made."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from infra.providers.base import Deployment
from infra.providers.local import PROVIDER, sshd
from infra.spec import parse


def problems(root: Path, *, nodes: int = 2) -> list[str]:
    spec = parse({"provider": "local", "nodes": nodes}, file="f")
    return PROVIDER.preflight(spec, Deployment(root=root, stack="s"))


def test_a_fit_machine_has_no_problem_and_nothing_is_made(root: Path) -> None:
    assert problems(root) == []
    assert list(root.iterdir()) == []


def test_too_many_nodes_missing_programs_and_a_bad_path_are_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sshd, "find", lambda program: None if program == "sshd" else program)
    colon = tmp_path / "a:b"
    colon.mkdir()

    too_many, no_sshd, path = problems(colon, nodes=10_000)

    assert "nodes is 10000" in too_many
    assert "64" in too_many
    assert "apt-get install openssh-server" in no_sshd
    assert "a colon" in path


def test_a_full_disk_is_told_with_what_is_needed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: namedtuple("Usage", "total used free")(1, 1, 1 << 20))
    (problem,) = problems(root)
    assert "has 1 MiB of free disk space, 2 node(s) need 96 MiB" in problem


def test_a_place_that_is_no_folder_is_told(root: Path) -> None:
    (root / ".trainstack").write_text("")
    (problem,) = problems(root)
    assert "can't be written to" in problem
