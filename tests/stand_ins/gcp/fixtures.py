"""Fixtures: `gcp`, an empty stand-in a test with Google's clients of this process pointed to it; `gcp_plugin`.

A test module has them by `from tests.stand_ins.gcp.fixtures import gcp, gcp_key, gcp_plugin  # noqa: F401`.
`engine_environment` is what the real engine needs beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.stand_ins import on_path
from tests.stand_ins.gcp.client import Key, StandIn

NOT_OURS = (
    "GOOGLE_CREDENTIALS",
    "GOOGLE_OAUTH_ACCESS_TOKEN",
    "GOOGLE_IMPERSONATE_SERVICE_ACCOUNT",
    "GOOGLE_ZONE",
    "GOOGLE_REGION",
)


def write_plugin(folder: Path) -> Path:
    """Make the executable that the engine finds on PATH; returns the folder."""
    return on_path.write_plugin(folder, "gcp")


def engine_environment(gcp: StandIn, plugin_folder: Path, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """`base` (default: our own environment) with GCP being the stand-in, and the plug-in first on PATH."""
    return on_path.environment(gcp.env, plugin_folder, without=NOT_OURS, base=base)


@pytest.fixture(scope="session")
def gcp_plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with `pulumi-resource-gcp`, for `engine_environment`."""
    return write_plugin(tmp_path_factory.mktemp("gcp plug-in"))


@pytest.fixture(scope="session")
def gcp_key() -> Key:
    return Key.new()


@pytest.fixture
def gcp(gcp_key: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """An empty project of its own; Google's libraries in this process talk to it too."""
    stand_in = StandIn(tmp_path / "gcp", gcp_key)
    for name in NOT_OURS:
        monkeypatch.delenv(name, raising=False)
    for name, value in stand_in.env.items():
        monkeypatch.setenv(name, value)
    yield stand_in
    stand_in.close()
