"""The script behind `make gpu-check`, walked through on CPU: that it runs, not what it measures."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def gpu_check(*words: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-m", "bench.gpu_check", *words]
    return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600, check=False)


def test_without_a_gpu_it_says_so_and_writes_nothing(tmp_path: Path) -> None:
    done = gpu_check("--output", str(tmp_path / "RESULTS.md"))
    assert done.returncode == 3
    assert "no NVIDIA GPU" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_every_part_runs_at_toy_size_and_is_written_down(tmp_path: Path) -> None:
    results = tmp_path / "RESULTS.md"
    done = gpu_check("--device", "cpu", "--tiny", "--output", str(results))
    assert done.returncode == 0, done.stdout + done.stderr
    text = results.read_text(encoding="utf-8")
    for part in ("parity, float32: fsdp × 2", "memory, fsdp × 2: optimizer", "tokens/s", "MFU", "torchtitan"):
        assert part in text
    assert json.loads((tmp_path / "gpu-check.json").read_text(encoding="utf-8"))["world"] == 2
