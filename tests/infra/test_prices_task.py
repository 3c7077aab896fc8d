"""`fab prices` as a process of its own: without a terminal, without the internet, and interrupted."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from infra.offers.offer import OFFERS
from tests.infra.checkouts import ROOT
from tests.infra.offering import OFFLINE, publish, row
from tests.stand_ins.lambda_cloud.server import StandIn

LIMIT_S = 120


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """Of a machine without the internet and without any provider's key."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LAMBDA_", "GPUHUNT_"))}
    return {**kept, **OFFLINE, "HOME": str(tmp_path), "NO_COLOR": "1"}


def started(variables: Mapping[str, str], *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fabric", "prices", *words],
        cwd=ROOT,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def fab(variables: Mapping[str, str], *words: str, code: int = 0) -> tuple[str, str]:
    with started(variables, *words) as process:
        said = process.communicate(timeout=LIMIT_S)
        assert process.returncode == code, said
    return said


def test_offline_the_snapshot_answers_as_json_and_says_why(variables: dict[str, str]) -> None:
    out, err = fab(variables, "--gpu", "H100", "--count", "8", "--nodes", "2", "--json")
    told = json.loads(out)
    offers = OFFERS.validate_python(told["offers"])
    assert {each.provider for each in offers} == {"aws", "gcp", "lambda", "runpod", "vast", "coreweave"}
    prices = [each["usd_per_gpu_hour"] for each in told["offers"]]
    known = [usd for usd in prices if usd is not None]
    assert known == sorted(known)
    assert prices == known + [None] * (len(prices) - len(known))
    assert {each.available for each in offers} == {None}
    no_key, no_catalogue, no_market = told["notes"]
    assert no_key.startswith("lambda: no key for Lambda: make one at cloud.lambda.ai/api-keys and set LAMBDA_API_KEY")
    assert no_catalogue.startswith("aws, gcp, lambda, runpod: gpuhunt's catalogue can't be loaded (")
    assert no_market.startswith("vast: ")
    assert err == "asking Lambda's API, gpuhunt's catalogue, Vast.ai through gpuhunt: at most 20 s\n"


def test_live_answers_and_the_catalogue_come_before_the_snapshot(variables: dict[str, str], tmp_path: Path) -> None:
    today = datetime.now(UTC).date()
    rows = {"aws": [row("p5.48xlarge", "us-east-1", 50.0, "H100")]}
    variables["GPUHUNT_CATALOG_URL"] = publish(tmp_path / "catalogue", rows, version=f"{today:%Y%m%d}-1")
    with StandIn() as account:
        account.capacity = {("us-west-2", "gpu_8x_h100_sxm5"): 2}
        out, _ = fab(variables | account.env, "--gpu", "H100", "--count", "8", "--region", "us")
    (free,) = [line for line in out.splitlines() if " yes " in line]
    for cell in ("23.92", "2.99", "on-demand", "lambda", "1 × gpu_8x_h100_sxm5", "us-west-2", "Ethernet"):
        assert cell in free
    (aws,) = [line for line in out.splitlines() if "p5.48xlarge" in line]
    assert "50.00" in aws
    assert "stale" not in aws
    assert f"gpuhunt's catalogue of AWS (spot: the cheapest zone), as of {today}" in out
    assert "gcp: gpuhunt's catalogue of gcp can't be loaded: look at the network; the snapshot of this" in out


def test_nothing_that_fits_is_one_sentence_and_exit_code_11(variables: dict[str, str]) -> None:
    out, err = fab(variables, "--gpu", "H100", "--count", "8", "--max-hourly", "1", code=11)
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("error: no provider offers 1 × H100:8, for at most $1.00 per hour: ")
    assert last.endswith(" offer(s) would fit without --max-hourly")


def test_an_option_that_cannot_be_is_refused_before_anyone_is_asked(variables: dict[str, str]) -> None:
    out, err = fab(variables, "--count", "many", code=2)
    assert (out, err) == ("", "error: --count 'many' is no whole number from 1 on: write one, as in --count 8\n")


def test_the_help_has_an_example(variables: dict[str, str]) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "fabric", "--help", "prices"],
        cwd=ROOT, env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    assert "Example: fab prices --gpu H100 --count 8" in said.stdout


@contextlib.contextmanager
def silent() -> Iterator[socket.socket]:
    """A server that takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LIMIT_S)
        yield server


def test_ctrl_c_ends_it_and_whom_it_asked(variables: dict[str, str]) -> None:
    with silent() as server:
        variables["GPUHUNT_CATALOG_URL"] = f"http://127.0.0.1:{server.getsockname()[1]}"
        with started(variables) as process:
            connection, _ = server.accept()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, out) == (130, "")
        assert err.endswith("interrupted\n")
        connection.settimeout(LIMIT_S)
        with connection, contextlib.suppress(ConnectionResetError):
            while connection.recv(4096):  # its question, and then the end of the process that asked
                pass


def test_what_makes_clusters_imports_no_gpuhunt() -> None:
    program = "import sys, infra.tasks, infra.program, infra.offers.command; sys.exit('gpuhunt' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
