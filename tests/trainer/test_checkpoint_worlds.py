"""Checkpoints among real ranks: any strategy and world opens any other's; nodes come and go; all learn of failures."""

import shutil
from pathlib import Path

import pytest
import torch

from tests.trainer import checkpoint_jobs as jobs
from tests.trainer import ranks

pytestmark = pytest.mark.ranks_import(
    "deepspeed.runtime.zero.muon.muon_optimizer", "trainer.strategies.deepspeed"
)  # deepspeed.initialize imports the first, and with it a compiler

# A name added here is tested against all others. Worlds: those in which the strategy exists.
STRATEGIES = {"single": (1,), **dict.fromkeys(("ddp", "fsdp", "hsdp", "zero1", "zero2", "zero3"), (1, 2, 4))}


KINDS = [(name, world) for name, worlds in STRATEGIES.items() for world in worlds]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """By KINDS, a run's output folder with checkpoints of steps 1 and 2 in it."""
    folder = tmp_path_factory.mktemp("saved")
    outputs = []
    for name, world in KINDS:
        outputs.append(folder / f"{name}-{world}")
        ranks.call(world, jobs.in_world, jobs.save, name, outputs[-1], {}, (1, 2))
    return outputs


@pytest.mark.parametrize(("name", "world"), KINDS)
def test_a_checkpoint_opens_under_any_strategy_and_world(saved: list[Path], name: str, world: int) -> None:
    """Model and optimizer, bit for bit; a third of all pairs, in which every strategy meets every other one."""
    some = saved[KINDS.index((name, world)) % 3 :: 3]
    assert ranks.call(world, jobs.in_world, jobs.opens, name, some) == [{}] * world


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "world"), KINDS)
def test_all_pairs_of_strategies_and_worlds(saved: list[Path], name: str, world: int) -> None:
    assert ranks.call(world, jobs.in_world, jobs.opens, name, saved) == [{}] * world


def test_what_is_saved_is_the_state_of_the_step_though_training_goes_on(tmp_path: Path) -> None:
    assert ranks.call(2, jobs.in_world, jobs.trains_on_during_a_save, tmp_path) == [[], []]


def test_a_save_in_the_background_writes_the_same_bytes_as_one_in_the_foreground(tmp_path: Path) -> None:
    for name, asynchronous in (("in", True), ("out", False)):
        ranks.call(2, jobs.in_world, jobs.save, "fsdp", tmp_path / name, {"asynchronous": asynchronous}, (2,))
    ours, theirs = (tmp_path / name / "checkpoints" / "step-00000002" for name in ("in", "out"))
    names = sorted(path.name for path in ours.glob("__*"))
    assert names
    assert names == sorted(path.name for path in theirs.glob("__*"))
    assert all((ours / name).read_bytes() == (theirs / name).read_bytes() for name in names)


def test_a_save_that_fails_on_one_rank_is_raised_on_all_at_the_same_step(tmp_path: Path) -> None:
    (steps, error), (_, other) = ranks.call(2, jobs.in_world, jobs.fail_on_one_rank, tmp_path)
    assert len(set(steps)) == 1
    assert error == other
    assert "CheckpointError: cannot write the checkpoint of step 1 to" in error
    assert "rank 1" in error
    assert "No space left on device" in error
    assert not list((tmp_path / "checkpoints").glob("step-*"))


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("name", ["ddp", "hsdp"])
def test_replicas_on_two_nodes_survive_the_loss_of_either(tmp_path: Path, name: str, lost: int) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    states = ranks.call(4, jobs.in_world, jobs.save_on_nodes, name, folders, {})
    files = [sorted(path.name for path in (folder / "checkpoints" / "step-00000002").iterdir()) for folder in folders]
    assert files[0] == files[1]
    shutil.rmtree(folders[lost])
    for step, state in ranks.call(4, jobs.in_world, jobs.resume_on_nodes, name, folders):
        assert step == 2
        assert all(torch.equal(state[key], value) for key, value in states[0].items())
    assert list((folders[lost] / "checkpoints" / "step-00000002").glob("__*"))  # it has a copy again


def test_each_tensor_may_be_kept_once_to_save_disk(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    ranks.call(4, jobs.in_world, jobs.save_on_nodes, "ddp", folders, {"replicas": "one"})
    parts = [list((folder / "checkpoints" / "step-00000002").glob("__*")) for folder in folders]
    assert parts[0]
    assert not parts[1]


def test_shards_that_are_nowhere_are_refused_on_all_ranks_by_name(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    ranks.call(4, jobs.in_world, jobs.save_on_nodes, "fsdp", folders, {})
    shutil.rmtree(folders[1])
    outcomes = ranks.outcomes(4, jobs.in_world, jobs.resume_on_nodes, "fsdp", folders)
    assert [rank.error for rank in outcomes] == ["CheckpointError"] * 4
    assert all("__2_0.distcp, __3_0.distcp" in rank.output for rank in outcomes)


def test_ranks_that_moved_to_other_nodes_are_sent_their_files(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    states = ranks.call(4, jobs.in_world, jobs.save_on_nodes, "fsdp", folders, {})
    for step, state in ranks.call(4, jobs.in_world, jobs.resume_on_nodes, "fsdp", folders[::-1]):
        assert step == 2
        assert all(torch.equal(state[key], value) for key, value in states[0].items())


def everything(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_new_run_on_two_nodes_is_sent_what_its_nodes_lack_of_another_s_checkpoint(tmp_path: Path) -> None:
    nodes = [tmp_path / "a", tmp_path / "b"]
    old = [node / "old" for node in nodes]
    states = ranks.call(4, jobs.in_world, jobs.save_on_nodes, "fsdp", old, {})
    before = everything(old[0]), everything(old[1])
    # The ranks have moved, and rank 0's node is new: it has no folder of that name at all.
    (tmp_path / "c").mkdir()
    for order, name in ((nodes[::-1], "fsdp"), (nodes, "ddp")):
        for step, state in ranks.call(4, jobs.in_world, jobs.begin_on_nodes, name, order, "old", nodes=2):
            assert step == 2
            assert all(torch.equal(state[key], value) for key, value in states[0].items())
    assert (everything(old[0]), everything(old[1])) == before
    assert not [path for node in nodes for path in (node / "new").rglob("*.distcp")]  # what was sent doesn't stay
    lost = ranks.outcomes(4, jobs.in_world, jobs.begin_on_nodes, "fsdp", [tmp_path / "c", nodes[0]], "old", nodes=2)
    assert [rank.error for rank in lost] == ["CheckpointError"] * 4
    assert all("no node has intact __2_0.distcp, __3_0.distcp" in rank.output for rank in lost)
    copies = ranks.call(2, jobs.in_world, jobs.save_on_nodes, "ddp", [node / "copies" for node in nodes], {})
    for step, state in ranks.call(
        2, jobs.in_world, jobs.begin_on_nodes, "ddp", [tmp_path / "c", nodes[0]], "copies", nodes=2
    ):
        assert step == 2
        assert all(torch.equal(state[key], value) for key, value in copies[0].items())
