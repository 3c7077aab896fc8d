"""Numbers arrive whole in every sink, and no sink can hurt the run."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.conftest import DEADLINE_S, RECIPE, ROOT, mounted_disk
from trainer.config import ProfileSection, Recipe
from trainer.distributed import processes
from trainer.errors import ConfigError
from trainer.metrics import Metrics, hardware, redaction, sinks
from trainer.metrics.meter import Meter, percentile
from trainer.metrics.profiler import Profiler
from trainer.metrics.progress import Progress, duration
from trainer.models.flops import flops_per_token
from trainer.models.llama import Llama
from trainer.recipe_file import load


def recipe(output: Path, *names: str, **settings: str) -> Recipe:
    keys = [f"{key}={value}" for key, value in settings.items()]
    return load(RECIPE, [f"output_dir={output}", f"metrics.sinks=[{', '.join(names)}]", *keys])


def write(metrics: Metrics, *, steps: int = 3) -> None:
    for step in range(1, steps + 1):
        metrics.event("step", step, loss=4.0 - step, gradient_norm=float("nan"), tokens=512)
    metrics.event("eval", steps, loss=1.5, seconds=0.1)
    metrics.close()


def lines(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def test_each_line_is_an_object_and_a_number_that_is_none_is_null(tmp_path: Path) -> None:
    write(Metrics(recipe(tmp_path, "jsonl"), active=True))
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 3]
    assert lines(tmp_path)[0]["gradient_norm"] is None
    assert lines(tmp_path)[3] == {**lines(tmp_path)[3], "event": "eval", "loss": 1.5}


@pytest.mark.parametrize("tail", ['{"event": "st', "x" * 200_000])
def test_half_a_line_of_a_killed_run_is_taken_away(tmp_path: Path, tail: str) -> None:
    write(Metrics(recipe(tmp_path, "jsonl"), active=True), steps=1)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(tail)
    write(Metrics(recipe(tmp_path, "jsonl"), active=True), steps=1)
    assert len(lines(tmp_path)) == 4


def test_bf16_is_refused_on_a_gpu_that_only_emulates_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *, including_emulation: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla V100")
    with processes() as here:
        hardware.check_precision(here, "bf16")
        gpu = replace(here, device=torch.device("cuda", 0))
        hardware.check_precision(gpu, "float32")
        with pytest.raises(ConfigError, match="the Tesla V100 of rank 0 can't compute in it; use float32"):
            hardware.check_precision(gpu, "bf16")


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    write(Metrics(recipe(tmp_path, "jsonl", "tensorboard", "prometheus"), active=False))
    assert not list(tmp_path.iterdir())


def test_prometheus_gets_the_newest_numbers_in_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "collector" / "trainstack.prom"
    write(Metrics(recipe(tmp_path, "prometheus", **{"metrics.prometheus_file": str(path)}), active=True))
    samples = dict(line.rsplit(" ", 1) for line in path.read_text().splitlines() if not line.startswith("#"))
    assert samples['trainstack_step_loss{experiment="smoke"}'] == "1.0"
    assert samples['trainstack_run_step{experiment="smoke"}'] == "3"
    assert "trainstack_step_gradient_norm" not in path.read_text()
    assert [entry.name for entry in path.parent.iterdir()] == ["trainstack.prom"]


def test_tensorboard_gets_curves(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write(Metrics(recipe(tmp_path, "tensorboard"), active=True))
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert [point.value for point in board.Scalars("step/loss")] == [3.0, 2.0, 1.0]


def test_weights_and_biases_works_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    write(Metrics(recipe(tmp_path, "wandb"), active=True, close_s=60))
    (log,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    assert b"step/loss" in log.read_bytes()


def test_mlflow_goes_on_in_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for _ in range(2):
        write(Metrics(recipe(tmp_path, "mlflow"), active=True, close_s=60))
    (curve,) = (tmp_path / "mlflow").glob("*/*/metrics/step/loss")
    assert [line.split()[1:] for line in curve.read_text().splitlines()] == [
        ["3.0", "1"],
        ["2.0", "2"],
        ["1.0", "3"],
    ] * 2


@pytest.mark.parametrize(
    ("sink", "environment"),
    [
        ("wandb", {"WANDB_MODE": "online", "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "5ec2" * 10}),
        ("mlflow", {"MLFLOW_TRACKING_URI": "http://someone:5ec25ec2@127.0.0.1:9"}),
    ],
)
def test_a_logger_without_its_server_is_off_and_tells_no_secret(
    tmp_path: Path, sink: str, environment: dict[str, str]
) -> None:
    """In a process of its own, as a run is: the library must not hold up its end either."""
    program = (
        "from pathlib import Path; from tests.trainer import test_metrics as t\n"
        f"output = Path({str(tmp_path)!r})\n"
        f"t.write(t.Metrics(t.recipe(output, {sink!r}, 'jsonl'), active=True, close_s=3))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            **environment,
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
            "WANDB_INIT_TIMEOUT": "2",
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    assert len(lines(tmp_path)) == 4
    assert f"metrics sink {sink}" in done.stderr
    assert "5ec2" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("sink", "module"), [("wandb", "wandb"), ("mlflow", "mlflow"), ("tensorboard", "torch.utils.tensorboard")]
)
def test_a_missing_package_costs_only_its_sink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], sink: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    write(Metrics(recipe(tmp_path, sink, "jsonl"), active=True))
    assert len(lines(tmp_path)) == 4
    assert f"metrics sink {sink} is off from here on: ModuleNotFoundError" in capfd.readouterr().err


def test_a_folder_that_cannot_be_written_costs_only_the_numbers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    write(Metrics(recipe(tmp_path / "file", "jsonl", "prometheus"), active=True))
    assert capfd.readouterr().err.count("is off from here on") == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's own thread
def test_a_full_disk_turns_its_sinks_off_and_leaves_whole_lines(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with mounted_disk(tmp_path / "small", "size=64k") as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(48 * 1024))  # four pages are left
        write(Metrics(recipe(disk, "jsonl"), active=True), steps=400)
        assert "metrics sink jsonl is off from here on: OSError" in capfd.readouterr().err
        before = lines(disk)
        assert 100 < len(before) < 400
        write(Metrics(recipe(disk, "jsonl", "tensorboard", "prometheus"), active=True))
        assert capfd.readouterr().err.count("is off from here on") == 3
        assert lines(disk) == before
        ballast.unlink()
        write(Metrics(recipe(disk, "jsonl", "tensorboard", "prometheus"), active=True))
        assert "is off" not in capfd.readouterr().err
        assert [line["step"] for line in lines(disk)[len(before) :]] == [1, 2, 3, 3]
        assert 'trainstack_run_step{experiment="smoke"} 3' in (disk / "metrics.prom").read_text()


def test_a_sink_that_hangs_delays_nothing_and_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    freed = threading.Event()
    monkeypatch.setattr(sinks.Prometheus, "write", lambda *_: freed.wait())
    write(Metrics(recipe(tmp_path, "prometheus", "jsonl"), active=True, close_s=0.2), steps=20_000)
    freed.set()
    told = capfd.readouterr().err
    assert "prometheus is more than 10000 records behind" in told
    assert "prometheus didn't write everything" in told


def test_secrets_are_taken_out_of_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    given = {"a": ["token hf_0123456789"], "b": "https://me:pass@host/x", "c": 3}
    assert redaction.redact_all(given) == {"a": ["token [redacted]"], "b": "https://me:[redacted]@host/x", "c": 3}


# ---- figures


def meter(times: list[float], **options: Any) -> Meter:
    """A meter whose clock says the given times, one after the other; wall and other clock are the same."""
    now = iter(times)
    return Meter(world=2, positions_per_step=1000, clock=lambda: next(now), wall=lambda: 100.0, **options)


def test_speed_percentiles_and_goodput_come_from_the_times() -> None:
    figures = meter([0.0, 5.0, 7.0, 20.0])
    for seconds in (1.0, 2.0, 3.0, 4.0):
        figures.step(seconds, tokens=500, data_wait_s=0.5)
    with figures.pause("checkpoint_stall_s"):
        pass
    assert figures.data_wait_s == 2.0
    got = figures.window()
    assert got["tokens_per_s"] == 100.0
    assert got["tokens_per_s_per_rank"] == 50.0
    assert (got["step_s_p50"], got["step_s_p95"]) == (2.0, 4.0)
    assert got["checkpoint_stall_s"] == 2.0
    assert got["goodput"] == 0.5
    assert "mfu" not in got


def test_goodput_since_the_first_start_counts_no_step_twice() -> None:
    first = meter([0.0])
    first.step(30.0, tokens=1, data_wait_s=0.0)
    second = Meter(world=1, positions_per_step=1, clock=iter([0.0, 10.0]).__next__, wall=lambda: 200.0)
    second.resume(first.facts())
    second.step(8.0, tokens=1, data_wait_s=0.0)
    got = second.window()
    assert got["goodput"] == 0.8
    assert got["goodput_since_first_start"] == pytest.approx(0.38)


def test_utilisation_is_model_flops_by_the_dense_peak_of_all_devices() -> None:
    known = meter([0.0, 9.0], flops_per_token=3e9, peak_flops=1e12)
    known.step(2.0, tokens=900, data_wait_s=0.0)
    assert known.window()["mfu"] == pytest.approx(3e9 * 1000 / 2.0 / 2e12)
    wrong = meter([0.0, 9.0], flops_per_token=3e9, peak_flops=1e12)
    wrong.step(0.1, tokens=900, data_wait_s=0.0)
    assert "mfu" not in wrong.window()


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4e12),
        ("NVIDIA H100 PCIe", "bf16", 756e12),
        ("NVIDIA H200", "bf16", 989.4e12),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312e12),
        ("NVIDIA A100 80GB PCIe", "float32", 19.5e12),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16", None),
        ("NVIDIA H100 80GB HBM3", "float64", None),
        ("NVIDIA X1000", "bf16", None),
        ("cpu", "float32", None),
    ],
)
def test_only_a_known_device_has_a_peak(name: str, precision: str, peak: float | None) -> None:
    assert hardware.peak_flops(name, precision) == peak


def test_flops_follow_the_formula() -> None:
    config = load(RECIPE, ["model.layers=2"]).model
    model = Llama(config)
    matrices = [weight.numel() for weight in model.parameters() if weight.dim() == 2]
    multiplied = sum(matrices) - config.vocabulary * config.width  # a table is only looked up
    assert flops_per_token(model, 32) == 6 * multiplied + 12 * 2 * config.width * 32
    assert flops_per_token(torch.nn.Linear(2, 2), 32) is None


def test_a_percentile_is_a_value_that_occurred() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([1.0], 95) == 1.0
    assert percentile([float(n) for n in range(1, 101)], 95) == 95.0


# ---- people


def test_a_terminal_shows_every_step_on_one_line() -> None:
    reader, writer = os.openpty()
    with os.fdopen(writer, "w") as terminal:
        progress = Progress(active=True, stream=terminal)
        progress.step("step 1 of 300", keep=False)
        progress.step("step 2", keep=False)
        progress.say("held-out loss 3")
        expected = b"step 1 of 300\r             \rstep 2\r      \rheld-out loss 3\r\n"
        shown = b""
        while len(shown) < len(expected):  # a terminal gives what it has
            shown += os.read(reader, 4096)
    os.close(reader)
    assert shown == expected


def test_a_file_gets_only_lines_that_stay(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        progress = Progress(active=True, stream=file)
        progress.step("step 1", keep=False)
        progress.step("step 2", keep=True)
        Progress(active=False, stream=file).say("rank 1")
    assert (tmp_path / "log").read_text() == "step 2\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59.6, "1 min 0 s"), (3725, "1 h 2 min"), (180000, "2 d 2 h")]
)
def test_durations_are_readable(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_chosen_steps_of_chosen_ranks_are_traced(tmp_path: Path) -> None:
    for rank in (0, 1):
        profiler = Profiler(tmp_path, ProfileSection(steps=(2, 3), ranks=(1,)), rank=rank)
        for step in range(1, 6):
            profiler.before(step)
            with torch.profiler.record_function(f"step {step}"):
                pass
            profiler.after(step)
        profiler.close(5)
    (trace,) = (tmp_path / "traces").iterdir()
    assert trace.name == "rank-1-steps-2-3.json"
    names = {str(event.get("name")) for event in json.loads(trace.read_text())["traceEvents"]}
    assert {name for name in names if name.startswith("step ")} == {"step 2", "step 3"}
