"""torchrun's process handling as torch 2.15 does it: one session a rank, poll, SIGTERM to the rest, then SIGKILL."""

import argparse
import os
import signal
import subprocess
import time
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure


def parse_args(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("nnodes", "node-rank", "nproc-per-node", "master-port", "shutdown-timeout", "max-restarts"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--master-addr", required=True)
    parser.add_argument("--rdzv-id", required=True)
    parser.add_argument("--no-python", action="store_true", required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser.parse_args(arguments)


def run(args: argparse.Namespace) -> None:
    def raise_signal(number: int, frame: object) -> None:  # noqa: ARG001
        raise SignalException("a signal came", number)

    signal.signal(signal.SIGTERM, raise_signal)
    ranks = {}
    for local_rank in range(args.nproc_per_node):
        rank = args.node_rank * args.nproc_per_node + local_rank
        world = str(args.nnodes * args.nproc_per_node)
        environment = os.environ | {"RANK": str(rank), "LOCAL_RANK": str(local_rank), "WORLD_SIZE": world}
        ranks[rank] = subprocess.Popen(args.command, env=environment, start_new_session=True)
    try:
        while True:
            time.sleep(0.1)
            codes = {rank: process.poll() for rank, process in ranks.items()}
            if any(codes.values()):
                break
            if all(code == 0 for code in codes.values()):
                return
    except SignalException:
        _close(list(ranks.values()), args.shutdown_timeout)
        raise
    _close(list(ranks.values()), 30)
    raise ChildFailedError({r: ProcessFailure(p.pid, p.returncode) for r, p in ranks.items() if p.returncode})


def _close(processes: list[subprocess.Popen[bytes]], timeout_s: float) -> None:
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
    end = time.monotonic() + timeout_s
    for process in processes:
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
