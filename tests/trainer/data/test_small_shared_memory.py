"""A node whose /dev/shm is tiny, as in many containers: nothing here needs shared memory, so nothing is killed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.conftest import DEADLINE_S, RECIPE, ROOT

SHELL = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"'


def test_prepare_and_training_need_no_shared_memory(corpus: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a mount namespace of its own needs root and unshare")
    apart = ["unshare", "--mount", "--propagation", "private", "sh", "-c", SHELL, "sh", sys.executable, "-m"]
    out = tmp_path / "out"
    prepare = ["trainer", "prepare", corpus, "--output", out, "--workers", "2", "--shard-tokens", "9000"]
    prepare += ["--split-share", "0.4"]
    sets = ["data.source=shards", f"data.path={out}", "strategy=ddp", f"output_dir={tmp_path / 'run'}"]
    # 4 MiB a micro-batch: far more than the 64 KiB of shared memory
    sets += ["data.sequence_length=2048", "training.micro_batch_size=128", "training.global_batch_size=256"]
    sets += ["training.steps=1", "model.width=2", "model.heads=1", "training.evaluation_batches=1"]
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "trainer", RECIPE]
    for words in (prepare, [*launch, *[word for item in sets for word in ("--set", item)]]):
        done = subprocess.run(
            [*apart, *map(str, words)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
