"""A stack of local nodes for a measurement: its own name, made for it and destroyed after it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.cluster import Cluster
from infra.pulumi_engine import environment
from infra.stack import project_root, read_cluster

ROOT = project_root()


def run(*argv: str) -> float:
    """Run a command of the product; returns its seconds. Raises RuntimeError with its output when it fails."""
    began = time.monotonic()
    done = subprocess.run(
        argv, cwd=ROOT, env=environment(ROOT), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return time.monotonic() - began


@contextmanager
def local_stack(*, nodes: int, processes_per_node: int) -> Iterator[tuple[Cluster, float]]:
    """(cluster, seconds of `pulumi up`); destroyed at the end, and its stack file removed."""
    stack = f"bench-{nodes}"
    file = ROOT / "stacks" / f"Pulumi.{stack}.yaml"
    run("pulumi", "stack", "init", stack, "--no-select", "--non-interactive")
    salt = file.read_text(encoding="utf-8") if file.exists() else ""
    file.write_text(
        f"{salt}config:\n  trainstack:cluster:\n    provider: local\n    nodes: {nodes}\n"
        f"    processes_per_node: {processes_per_node}\n",
        encoding="utf-8",
    )
    try:
        seconds = run("pulumi", "up", "--stack", stack, "--yes", "--skip-preview", "--non-interactive")
        yield read_cluster(ROOT, stack), seconds
    finally:
        run(sys.executable, "-m", "infra.destroy", "--stack", stack)
        run("pulumi", "stack", "rm", stack, "--yes", "--non-interactive")
        Path(file).unlink(missing_ok=True)
