"""Fixtures: `aws_server`, one stand-in a module, and `aws`, the same one emptied before each test.

A test module has them by `from tests.stand_ins.aws.fixtures import aws, aws_server  # noqa: F401`, or a conftest.py by
`pytest_plugins = ["tests.stand_ins.aws.fixtures"]`. `engine_environment` is what the real engine needs beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.stand_ins import on_path
from tests.stand_ins.aws.client import StandIn

NOT_OURS = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_EC2", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE")


def write_plugin(folder: Path) -> Path:
    """Make the executable that the engine finds on PATH; returns the folder."""
    return on_path.write_plugin(folder, "aws")


def engine_environment(aws: StandIn, plugin_folder: Path, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """`base` (default: our own environment) with AWS being the stand-in, and the plug-in first on PATH."""
    return on_path.environment(aws.env, plugin_folder, without=NOT_OURS, base=base)


@pytest.fixture(scope="session")
def aws_plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with `pulumi-resource-aws`, for `engine_environment`."""
    return write_plugin(tmp_path_factory.mktemp("aws plug-in"))


@pytest.fixture(scope="module")
def aws_server() -> Iterator[StandIn]:
    with StandIn() as server:
        yield server


@pytest.fixture
def aws(aws_server: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """An empty account; boto3 in this process talks to it too."""
    aws_server.reset()
    for name in NOT_OURS:
        monkeypatch.delenv(name, raising=False)
    for name, value in aws_server.env.items():
        monkeypatch.setenv(name, value)
    yield aws_server
    aws_server.release(execute=False)
