"""Strategies agree with one process; a stopped or killed run goes on exactly where it was."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.trainer import ranks
from tests.trainer.conftest import DEADLINE_S, RECIPE, Start, command, events, finish, numbers
from trainer.errors import ConfigError

STEPS = "training.steps=6"
CLIP = "training.clip_norm=0.05"  # well below the norms of a fresh model, so that clipping counts


STRATEGIES = {
    "ddp": ["strategy=ddp"],
    "fsdp": ["strategy=fsdp"],
    "hsdp": ["strategy=hsdp", "strategy.replicate=2"],
    "deepspeed": ["strategy=deepspeed", "strategy.stage=2"],
}


def train(output: Path, *overrides: str, world: int, code: int = 0) -> str:
    """`python -m trainer` on ranks that all have to end with `code`; the first one's output."""
    ended = ranks.outcomes(world, ranks.trainer, RECIPE, f"output_dir={output}", *overrides)
    assert {rank.exit_code for rank in ended} == {code}, ended[0].output[-4000:]
    return ended[0].output


@pytest.fixture(scope="module")
def same(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides: short documents, so that windows hold unequal numbers of valid tokens."""
    folder = tmp_path_factory.mktemp("documents")
    for number in range(200):
        (folder / f"{number:03}.txt").write_text(f"document {number} " * (1 + number * number % 11))
    return [CLIP, "data.source=path", f"data.path={folder}"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, same: list[str]) -> Path:
    output = tmp_path_factory.mktemp("reference")
    train(output, "strategy=single", "training.micro_batch_size=16", *same, world=0)
    return output


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_under_torchrun_trains_like_one_process(
    start: Start, reference: Path, same: list[str], tmp_path: Path, name: str
) -> None:
    overrides = ["training.micro_batch_size=4", *same, *STRATEGIES[name]]
    finish(start(command(2, f"output_dir={tmp_path}", *overrides)))
    for key in ("loss", "gradient_norm"):
        assert numbers(tmp_path, key) == pytest.approx(numbers(reference, key), rel=1e-4)
    scored, expected = (events(output, "eval")[-1]["loss"] for output in (tmp_path, reference))
    assert scored == pytest.approx(expected, rel=1e-4)  # over tokens, not over the ranks' means
    assert len(set(numbers(tmp_path, "tokens"))) > 1  # unequal numbers of valid tokens
    assert min(numbers(tmp_path, "gradient_norm")) > 0.05


def test_a_resumed_run_repeats_the_uninterrupted_one_exactly(tmp_path: Path) -> None:
    train(tmp_path / "whole", STEPS, world=2)
    shutil.copytree(tmp_path / "whole", tmp_path / "half")
    (tmp_path / "half" / "checkpoints" / "step-00000006" / "manifest.json").unlink()
    (tmp_path / "half" / "checkpoints" / "step-00000100").mkdir()  # foreign and empty: no checkpoint
    train(tmp_path / "half", STEPS, world=2)
    assert events(tmp_path / "half", "resume")[0]["step"] == 3
    assert numbers(tmp_path / "half", "loss")[6:] == numbers(tmp_path / "whole", "loss")[3:]
    again = train(tmp_path / "half", STEPS, world=2)
    assert "already finished" in again
    assert "a step is 16 samples = 1 in a micro-batch × 8 in a row × 2 ranks" in again


def test_a_checkpoint_loads_into_any_other_strategy_and_world_size(tmp_path: Path) -> None:
    """With tied embeddings, whose one weight has two names, and each step's loss as if nothing had happened."""
    same = ["model.tie_embeddings=true", "schedule.kind=constant"]
    train(tmp_path / "one", "training.steps=8", "strategy=single", *same, world=0)
    output = tmp_path / "three"
    train(output, "training.steps=3", "strategy=ddp", *same, world=2)
    train(output, "training.steps=6", "strategy=fsdp", *same, world=4)
    train(output, "training.steps=8", "strategy=single", *same, world=0)
    assert [line["step"] for line in events(output, "resume")] == [3, 6]
    assert [line["step"] for line in events(output, "step")] == list(range(1, 9))
    assert numbers(output, "loss") == pytest.approx(numbers(tmp_path / "one", "loss"), rel=1e-4)


def test_a_damaged_checkpoint_is_passed_over_for_the_older_one(tmp_path: Path) -> None:
    train(tmp_path, STEPS, "strategy=single", world=0)
    damaged = next((tmp_path / "checkpoints" / "step-00000006").glob("__0_*"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    output = train(tmp_path, STEPS, "strategy=single", world=0)
    assert "step-00000006 is not usable" in output
    assert "resumed from step 3" in output


def test_a_stop_signal_leaves_a_checkpoint_and_says_so_in_the_exit_code(tmp_path: Path) -> None:
    words = (RECIPE, f"output_dir={tmp_path}", "strategy=single", "training.steps=1e6")
    with ranks.running(0, ranks.trainer, *words) as (process,):
        wait_for_step(tmp_path)
        os.kill(process.pid, signal.SIGTERM)
        ended = process.finish()
    assert ended.exit_code == 75, ended.output
    assert "with a checkpoint" in ended.output
    stopped = events(tmp_path, "step")[-1]["step"]
    assert (tmp_path / "checkpoints" / f"step-{stopped:08d}" / "manifest.json").exists()


def wait_for_step(output: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not ((output / "metrics.jsonl").exists() and events(output, "step")):
        assert time.monotonic() < deadline, "no step was ever logged"
        time.sleep(0.05)


def two_nodes(folders: list[Path], *overrides: str, code: int = 0) -> list[str]:
    """Two ranks on each of two nodes without shared storage, which all have to end with `code`: their outputs."""
    ended = ranks.outcomes(4, _with_own_folder, folders, overrides, nodes=2)
    assert {rank.exit_code for rank in ended} == {code}, [rank.output[-4000:] for rank in ended]
    return [rank.output for rank in ended]


def _with_own_folder(folders: list[Path], overrides: list[str]) -> None:
    ranks.trainer(RECIPE, f"output_dir={folders[int(os.environ['GROUP_RANK'])]}", *overrides)


def test_a_node_that_lost_its_disk_is_sent_a_full_copy(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    two_nodes(folders, "strategy=ddp", "training.steps=3")
    shutil.rmtree(folders[1] / "checkpoints")
    two_nodes(folders, "strategy=ddp", STEPS)
    assert events(folders[0], "resume")[0]["step"] == 3
    assert list((folders[1] / "checkpoints" / "step-00000003").glob("__0_*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_disk_that_is_too_small_on_one_node_is_refused_by_all_ranks_before_training(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "small disk"]
    folders[1].mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1500k", "none", str(folders[1])], check=True)
    try:
        outputs = two_nodes(folders, "strategy=fsdp", "model.width=96", STEPS, code=3)
        for output in outputs:
            assert f"(rank 2: {folders[1]}/checkpoints has 1." in output
            assert "MiB free and 3 more checkpoints need" in output
        assert not (folders[0] / "metrics.jsonl").exists()  # nothing was begun
    finally:
        subprocess.run(["umount", str(folders[1])], check=True)


def test_shards_that_exist_nowhere_any_more_are_named_and_nothing_is_resumed(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    two_nodes(folders, "strategy=fsdp", "training.steps=3")
    kept = two_nodes(folders, "strategy=fsdp", "training.steps=4")
    assert "resumed from step 3" in kept[0]
    shutil.rmtree(folders[1] / "checkpoints")
    outputs = two_nodes(folders, "strategy=fsdp", STEPS, code=3)
    for output in outputs:
        assert "__2_0.distcp, __3_0.distcp" in output
    assert not [line for line in events(folders[0], "step") if line["step"] > 4]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_ranks_stop_at_the_same_step_when_only_torchrun_is_told(start: Start, tmp_path: Path, number: int) -> None:
    process = start(command(2, f"output_dir={tmp_path}", "training.steps=1e6"))
    wait_for_step(tmp_path)
    os.kill(process.pid, number)
    finish(process, code=None)
    stopped = events(tmp_path, "checkpoint")[-1]["step"]
    assert stopped == events(tmp_path, "step")[-1]["step"]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_node_without_a_compiler_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    output = train(tmp_path, "training.compile=true", f"strategy={strategy}", world=2, code=ConfigError.exit_code)
    assert "there is no no-such-compiler on this node; install it" in output
    assert "Traceback" not in output
