"""Seconds to the first step: `fab train` against plain torchrun of the same job on the same nodes (goal: at most 1.1×).

Both are timed from typing the command to the first optimizer step's own time stamp in metrics.jsonl.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Sequence

from bench.stack import ROOT, local_stack, run
from bootstrap.fleet import Fleet
from bootstrap.hosts import ssh_command
from bootstrap.prepare import ready, sync_code
from infra.cluster import Cluster

RECIPE = "trainer/recipes/smoke.yaml"
PORT = 29400
ROUNDS = 3


def measure() -> dict[str, float]:
    figures: dict[str, float] = {}
    for nodes in (2, 4, 8):
        with local_stack(nodes=nodes, processes_per_node=1) as (cluster, _):
            run("fab", "bootstrap", "--stack", cluster.stack)
            ours, plain = [], []
            for attempt in range(ROUNDS):  # interleaved, so that the machine's moods hit both
                plain.append(_plain_torchrun(cluster, f"plain-{attempt}"))
                ours.append(_fab_train(cluster, f"ours-{attempt}"))
            figures[f"{nodes} nodes: plain torchrun, s"] = round(statistics.median(plain), 2)
            figures[f"{nodes} nodes: fab train, s"] = round(statistics.median(ours), 2)
            figures[f"{nodes} nodes: ratio"] = round(statistics.median(ours) / statistics.median(plain), 3)
    return figures


def _fab_train(cluster: Cluster, name: str) -> float:
    began = time.time()
    run("fab", "train", "--stack", cluster.stack, "--recipe", RECIPE, "--name", name)
    return _first_step(cluster, f"{cluster.head.work_dir}/storage/{name}") - began


def _plain_torchrun(cluster: Cluster, name: str) -> float:
    """What a person would type on each node, with the environment and code that bootstrap left there."""
    with Fleet(cluster, root=ROOT) as fleet:
        prepared = ready(fleet, root=ROOT)
        code = sync_code(fleet, root=ROOT)
    began = time.time()
    started = [
        subprocess.Popen(
            ssh_command(cluster, node, _torchrun(cluster, node.name, prepared.python, code.path, name), root=ROOT),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for node in cluster.nodes
    ]
    if any(process.wait() != 0 for process in started):
        raise RuntimeError("plain torchrun failed")
    return _first_step(cluster, f"{cluster.head.work_dir}/storage/{name}") - began


def _torchrun(
    cluster: Cluster, name: str, python: dict[str, str], code: dict[str, str], experiment: str
) -> Sequence[str]:
    node = cluster.node(name)
    threads = max(1, node.cpu_threads // node.processes)
    return [
        "env", "-C", code[name], f"OMP_NUM_THREADS={threads}", f"GLOO_SOCKET_IFNAME={node.interface}",
        python[name], "-m", "torch.distributed.run",
        f"--nnodes={len(cluster.nodes)}", f"--node-rank={node.rank}", f"--nproc-per-node={node.processes}",
        f"--master-addr={cluster.head.private.host}", f"--master-port={PORT}",
        "-m", "trainer", RECIPE, "--set", f"output_dir={node.work_dir}/storage/{experiment}",
    ]  # fmt: skip


def _first_step(cluster: Cluster, output_dir: str) -> float:
    with Fleet(cluster, root=ROOT) as fleet:
        text = fleet.shell(cluster.head.name).get_bytes(f"{output_dir}/metrics.jsonl").decode()
    return next(event["time"] for event in map(json.loads, text.splitlines()) if event["event"] == "step")
