"""Seconds of `pulumi preview` of an AWS cluster over the number of nodes, against the tests' stand-in for AWS."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from tests.infra.checkouts import Checkout
from tests.stand_ins.aws.client import StandIn
from tests.stand_ins.aws.fixtures import engine_environment, write_plugin

WARM_UP = 3  # compiles the SDK, and is left out
_QUOTA, _VCPUS = "L-417A185B", 64 * 192


def measure() -> dict[str, float]:
    figures = {}
    with tempfile.TemporaryDirectory() as folder, StandIn() as aws:
        aws.quota(_QUOTA, _VCPUS)
        checkout = Checkout(Path(folder) / "checkout", engine_environment(aws, write_plugin(Path(folder) / "plug-in")))
        for nodes in (WARM_UP, 1, 2, 8, 64):
            checkout.cluster(
                "bench", provider="aws", region="us-east-1", gpus="H100:8", nodes=nodes, ssh_from=["203.0.113.7"]
            )
            began = time.monotonic()
            checkout.pulumi("preview", "--stack", "bench", code=0)
            figures[f"{nodes} nodes, s"] = round(time.monotonic() - began, 2)
    del figures[f"{WARM_UP} nodes, s"]
    figures["64 / 2 nodes"] = round(figures["64 nodes, s"] / figures["2 nodes, s"], 2)
    return figures
