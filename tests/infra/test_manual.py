"""The pictures in infra/README.md are what the program would make of the stack files as they are."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.errors import EngineError
from infra.pulumi_engine import find_pulumi
from scripts.picture import picture
from tests.infra.checkouts import ROOT, Checkout
from tests.stand_ins.aws.client import StandIn as Aws
from tests.stand_ins.aws.fixtures import aws, aws_plugin, aws_server
from tests.stand_ins.aws.fixtures import engine_environment as with_aws
from tests.stand_ins.gcp.client import StandIn as Gcp
from tests.stand_ins.gcp.fixtures import engine_environment as with_gcp
from tests.stand_ins.gcp.fixtures import gcp, gcp_key, gcp_plugin

__all__ = ["aws", "aws_plugin", "aws_server", "gcp", "gcp_key", "gcp_plugin"]
pytestmark = pytest.mark.end_to_end


def in_the_manual(cloud: str) -> str:
    """The first picture under "What is made on …"."""
    text = (ROOT / "infra" / "README.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"## What is made on {cloud}\n(.*?)\n## ", text, re.DOTALL)
    (drawn,) = re.findall(r"```mermaid\n(.*?)\n```", section, re.DOTALL)
    return str(drawn)


def drawn(path: Path, stack: str, variables: dict[str, str]) -> str:
    """Of the stack file as it is, but for who may reach SSH: that asks a service outside."""
    try:
        engine = find_pulumi(ROOT)
    except EngineError as error:
        pytest.skip(str(error))
    variables["PATH"] = f"{variables['PATH']}{os.pathsep}{engine.parent}"
    checkout = Checkout(path, variables)
    file = checkout.path / "stacks" / f"Pulumi.{stack}.yaml"
    spec: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))["config"]["trainstack:cluster"]
    checkout.cluster(stack, **{**spec, "ssh_from": ["203.0.113.7"]})
    return picture(json.loads(checkout.pulumi("preview", "--json", "--stack", stack, code=0).stdout))


def test_aws(aws: Aws, aws_plugin: Path, tmp_path: Path) -> None:
    aws.quota("L-3819A6DF", 8)
    assert drawn(tmp_path / "checkout", "aws", with_aws(aws, aws_plugin)) == in_the_manual("AWS")


def test_gcp(gcp: Gcp, gcp_plugin: Path, tmp_path: Path) -> None:
    assert drawn(tmp_path / "checkout", "gcp", with_gcp(gcp, gcp_plugin)) == in_the_manual("GCP")
