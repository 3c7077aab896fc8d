"""Two "nodes" on this machine for launcher tests: folders, a quick stand-in for torchrun, a fleet without SSH."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from launcher_nodes import STAND_IN_TORCH, make_cluster
from stand_in_fleet import LocalFleet

from infra.cluster import Cluster
from launcher.node.commands import stop
from launcher.node.layout import RunFolder


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes in a folder with blanks and letters beyond ASCII; nothing of any run is left on them afterwards."""
    folder = tmp_path / "zwei Knoten ü"
    made = make_cluster(folder)
    yield made
    for node in made.nodes:
        for path in Path(node.work_dir).glob("runs/*/run.json"):
            stop(RunFolder(path.parent), 0)


@pytest.fixture
def fleet(cluster: Cluster) -> Iterator[LocalFleet]:
    made = LocalFleet(cluster)
    yield made
    made.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The checkout on the user's machine."""
    path = tmp_path / "Projekt mit Ümlaut"
    path.mkdir()
    return path


@pytest.fixture
def prepared(cluster: Cluster) -> Any:
    """What bootstrap says of ready nodes: this interpreter is the environment."""
    return SimpleNamespace(python={node.name: sys.executable for node in cluster.nodes})


@pytest.fixture
def code(cluster: Cluster, tmp_path: Path) -> Any:
    """A code tree on each node, with the user's folder `scripts` in it and the stand-in as its `torch`."""
    made = SimpleNamespace(digest="0123456789abcdef", path={})
    for node in cluster.nodes:
        path = Path(node.work_dir) / "code" / made.digest
        path.mkdir(parents=True)
        (path / "torch").symlink_to(STAND_IN_TORCH / "torch")
        (path / "scripts").symlink_to(tmp_path / "scripts")
        made.path[node.name] = str(path)
    return made


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    """Writes the user's script."""
    folder = tmp_path / "scripts"
    folder.mkdir()

    def write(text: str) -> Path:
        path = folder / "user script.py"
        path.write_text(text)
        return path

    return write
