"""One rank's checkpoints: full disks, damaged, foreign and hostile folders, retention, and what resuming promises."""

import errno
import json
import pickle
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer import checkpoint_jobs as jobs
from tests.trainer import ranks
from tests.trainer.conftest import RECIPE, mounted_disk
from trainer.checkpoint import Checkpoints, compatibility, retention
from trainer.checkpoint.claim import NOTE
from trainer.checkpoint.folder import Folder
from trainer.checkpoint.manifest import VERSION
from trainer.distributed import Processes
from trainer.errors import CheckpointError, ConfigError
from trainer.recipe_file import load
from trainer.strategies import Strategy


def saved(
    here: Processes, strategy: Strategy, output: Path, steps: Iterable[int] = (1, 2), **config: Any
) -> Checkpoints:
    kept = jobs.checkpoints(here, output, **config)
    for step in steps:
        kept.save(step, strategy, facts=jobs.FACTS)
    kept.wait()
    return kept


def resumed(here: Processes, strategy: Strategy, output: Path, wanted: str = "auto") -> int | None:
    found = jobs.checkpoints(here, output).resume(strategy, wanted=wanted, check=lambda _: None)
    return None if found is None else found.step


def step_folder(output: Path, step: int) -> Path:
    return output / "checkpoints" / f"step-{step:08d}"


def steps_in(output: Path) -> list[str]:
    return sorted(path.name for path in (output / "checkpoints").iterdir() if path.name != NOTE)


# ---- writing


def broken_folder(here: Processes, number: int) -> Any:
    class Full(Folder):
        """Writes part of the second file, then fails the way a disk does."""

        def put(self, step: int, name: str, pieces: Iterable[memoryview]) -> dict[str, Any]:
            if step == 2:
                (self._partial(step) / name).write_bytes(b"half")
                raise OSError(number, errno.errorcode[number], str(self._partial(step) / name))
            return super().put(step, name, pieces)

    return lambda location, **_: Full(Path(location), here)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_refuses_is_named_and_the_older_checkpoint_stays(
    here: Processes, strategy: Strategy, tmp_path: Path, number: int
) -> None:
    kept = jobs.checkpoints(here, tmp_path, broken_folder(here, number), keep=1)
    kept.save(1, strategy, facts=jobs.FACTS)
    kept.save(2, strategy, facts=jobs.FACTS)
    with pytest.raises(CheckpointError, match=f"step 2 to {tmp_path}.*{errno.errorcode[number]}"):
        kept.wait()
    kept.close()
    assert resumed(here, strategy, tmp_path) == 1
    assert steps_in(tmp_path) == ["step-00000001"]  # what was half written is gone


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path / "small", "size=1m,nr_inodes=40") as folder:
        yield folder


def test_a_real_full_disk_is_named_by_the_save(here: Processes, strategy: Strategy, small_disk: Path) -> None:
    saved(here, strategy, small_disk, [1]).close()
    kept = jobs.checkpoints(here, small_disk)
    kept.save(2, strategy, facts=jobs.FACTS)
    kept.wait()
    kept.save(3, strategy, facts=jobs.FACTS)
    with pytest.raises(CheckpointError, match=r"disk full at .*No space left on device"):
        kept.wait()
    kept.close()
    assert resumed(here, strategy, small_disk) == 2


def test_space_and_inodes_are_looked_for_on_the_right_disk_before_training(
    here: Processes, tmp_path: Path, small_disk: Path
) -> None:
    kept = jobs.checkpoints(here, tmp_path, location=str(small_disk))
    with pytest.raises(CheckpointError, match=f"{small_disk}.*inodes"):
        kept.require_room(held=10, model=10)
    subprocess.run(["mount", "-o", "remount,nr_inodes=1000", small_disk], check=True)
    kept.require_room(held=10, model=10)
    with pytest.raises(CheckpointError, match=f"{small_disk} has 1.0 MiB free and 4 more.*checkpoint.keep"):
        kept.require_room(held=10**6, model=10**6)
    jobs.checkpoints(here, tmp_path).require_room(held=10**6, model=10**6)  # the other disk has room
    kept.close()


def test_storage_that_gives_back_other_bytes_is_found_out(here: Processes, strategy: Strategy, tmp_path: Path) -> None:
    class Liar(Folder):
        def reread(self, step: int, name: str) -> dict[str, Any]:
            path = self._partial(step) / name
            path.write_bytes(path.read_bytes()[:-1] + b"?")
            return super().reread(step, name)

    kept = jobs.checkpoints(here, tmp_path, lambda location, **_: Liar(Path(location), here))
    kept.save(1, strategy, facts=jobs.FACTS)
    with pytest.raises(CheckpointError, match="reads back differently"):
        kept.wait()
    kept.close()


def test_a_run_that_is_killed_while_saving_keeps_the_checkpoint_before(
    tmp_path: Path, here: Processes, strategy: Strategy
) -> None:
    """keep: 1, and the process ends in the middle of the second save."""
    (ended,) = ranks.outcomes(0, jobs.in_world, jobs.die_in_the_second_save, tmp_path)
    assert ended.exit_code == -signal.SIGKILL, ended.output
    assert (tmp_path / "checkpoints" / ".step-00000002.partial").exists()
    assert resumed(here, strategy, tmp_path) == 1
    assert steps_in(tmp_path) == ["step-00000001"]


def test_memory_of_many_saves_does_not_grow(here: Processes, strategy: Strategy, tmp_path: Path) -> None:
    kept = saved(here, strategy, tmp_path, [1], keep=1)
    buffers = {id(buffer) for buffer in kept._saver._buffers.values()}
    for step in range(2, 12):
        kept.save(step, strategy, facts=jobs.FACTS)
    kept.wait()
    kept.close()
    assert {id(buffer) for buffer in kept._saver._buffers.values()} == buffers
    assert steps_in(tmp_path) == ["step-00000011"]


# ---- retention


def manifests(*steps: int, losses: dict[int, float] | None = None) -> dict[int, dict[str, Any]]:
    return {step: {"step": step, "held_out_loss": (losses or {}).get(step)} for step in steps}


@pytest.mark.parametrize(
    ("options", "gone"),
    [
        ({"keep": 2}, [5, 10, 900]),
        ({"keep": 2, "resumed_from": 5}, [10, 900]),
        ({"keep": 2, "keep_every_steps": 10}, [5]),
        ({"keep": 1, "keep_best": True}, [5, 900, 1000]),
        ({"keep": 9}, []),
    ],
)
def test_retention_counts_by_number_and_keeps_what_matters(options: dict[str, Any], gone: list[int]) -> None:
    there = manifests(5, 10, 900, 1000, 10000, 20000, losses={5: 3.0, 10: 1.0, 900: float("nan"), 1000: 2.0})
    defaults = {"keep_every_steps": None, "keep_best": False, "resumed_from": None}
    assert retention.superfluous(there, current=10000, **{**defaults, **options}) == gone


def test_what_was_resumed_from_outlives_later_saves(here: Processes, strategy: Strategy, tmp_path: Path) -> None:
    saved(here, strategy, tmp_path, [1]).close()
    kept = jobs.checkpoints(here, tmp_path, keep=1)
    kept.resume(strategy, check=lambda _: None)
    for step in (2, 3):
        kept.save(step, strategy, facts=jobs.FACTS)
    kept.wait()
    kept.close()
    assert steps_in(tmp_path) == ["step-00000001", "step-00000003"]


# ---- wrong folders


def test_the_next_older_one_is_taken_with_a_note(
    here: Processes, strategy: Strategy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(here, strategy, tmp_path, [9, 10, 11]).close()
    manifest = step_folder(tmp_path, 11) / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:100])
    part = next(step_folder(tmp_path, 10).glob("__0_*"))
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    assert resumed(here, strategy, tmp_path) == 9
    said = capsys.readouterr().out
    assert "step-00000011/manifest.json is not valid JSON" in said
    assert "step-00000010 is not usable: no node has intact __0_0.distcp" in said


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"step": 1}'])
def test_a_damaged_manifest_alone_is_refused_instead_of_starting_again(
    here: Processes, strategy: Strategy, tmp_path: Path, content: bytes
) -> None:
    saved(here, strategy, tmp_path, [1]).close()
    (step_folder(tmp_path, 1) / "manifest.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"manifest.json.*resume: never"):
        resumed(here, strategy, tmp_path)


def test_versions(here: Processes, strategy: Strategy, tmp_path: Path) -> None:
    saved(here, strategy, tmp_path, [1]).close()
    path = step_folder(tmp_path, 1) / "manifest.json"
    manifest = json.loads(path.read_bytes())
    assert manifest["version"] == VERSION
    del manifest["version"]
    path.write_text(json.dumps(manifest))  # the first form of a manifest
    assert resumed(here, strategy, tmp_path) == 1
    path.write_text(json.dumps({**manifest, "version": VERSION + 1}))
    with pytest.raises(CheckpointError, match="use a newer one"):
        resumed(here, strategy, tmp_path)


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("the checkpoint ran code",))


def with_file(folder: Path, name: str, content: bytes) -> None:
    """Puts a file in and its digest into the manifest, as someone with access to the folder can."""
    import hashlib

    (folder / name).write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["files"][name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("hostile", [pickle.dumps(Hostile()), b"cos\nsystem\n(S'true'\ntR.", pickle.dumps(print)])
def test_a_pickle_that_asks_for_code_is_refused_unread(
    here: Processes, strategy: Strategy, tmp_path: Path, capsys: pytest.CaptureFixture[str], hostile: bytes
) -> None:
    saved(here, strategy, tmp_path, [1]).close()
    with_file(step_folder(tmp_path, 1), ".metadata", hostile)
    with pytest.raises(CheckpointError, match="it asks for"):
        resumed(here, strategy, tmp_path)
    assert "ran code" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (".metadata", b""),
        (".metadata", b"\x80"),
        (".metadata", pickle.dumps({"a": 1})),
        (".metadata", pickle.dumps([1])),
        ("random.safetensors", b""),
    ],
)
def test_metadata_that_is_none_is_refused(
    here: Processes, strategy: Strategy, tmp_path: Path, name: str, content: bytes
) -> None:
    saved(here, strategy, tmp_path, [1]).close()
    with_file(step_folder(tmp_path, 1), name, content)
    with pytest.raises(CheckpointError, match="use another checkpoint"):
        resumed(here, strategy, tmp_path)


def test_a_tensor_file_with_code_in_it_is_refused(here: Processes, strategy: Strategy, tmp_path: Path) -> None:
    saved(here, strategy, tmp_path, [1]).close()
    part = next(step_folder(tmp_path, 1).glob("__0_*"))
    blob = tmp_path / "blob"
    torch.save(Hostile(), blob)
    content = bytearray(part.read_bytes())
    content[: blob.stat().st_size] = blob.read_bytes()
    with_file(step_folder(tmp_path, 1), part.name, bytes(content))
    with pytest.raises(CheckpointError, match="cannot load"):
        resumed(here, strategy, tmp_path)


def test_a_checkpoint_of_another_model_is_refused_with_the_tensor(
    here: Processes, strategy: Strategy, tmp_path: Path
) -> None:
    saved(here, strategy, tmp_path, [1]).close()
    wider = jobs.prepared(here, load(RECIPE, ["strategy=single", "model.width=64"]))
    with pytest.raises(CheckpointError, match=r"another model.*embedding.weight is \[257, 32\].*\[257, 64\] here"):
        resumed(here, wider, tmp_path)


# ---- an explicit resume


def test_an_explicit_checkpoint_begins_a_run_and_its_own_then_win(
    here: Processes, strategy: Strategy, tmp_path: Path
) -> None:
    saved(here, strategy, tmp_path / "old", [3, 4]).close()
    for wanted, step in ((tmp_path / "old", 4), (step_folder(tmp_path / "old", 3), 3)):
        assert resumed(here, strategy, tmp_path / f"new-{step}", str(wanted)) == step
    saved(here, strategy, tmp_path / "new-3", [7]).close()
    assert resumed(here, strategy, tmp_path / "new-3", str(tmp_path / "old")) == 7


def hugging_face(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def deepspeed(folder: Path) -> None:
    (folder / "latest").write_text("global_step1")


def torch_save(folder: Path) -> None:
    torch.save({}, folder / "model.pt")


def plain_dcp(folder: Path) -> None:
    (folder / ".metadata").write_bytes(b"")


def empty(folder: Path) -> None:
    del folder


@pytest.mark.parametrize(
    ("fill", "said"),
    [
        (hugging_face, "Hugging Face model folder"),
        (deepspeed, "DeepSpeed's own checkpoint"),
        (torch_save, "torch.save"),
        (plain_dcp, "no manifest.json"),
        (empty, "is empty"),
    ],
)
def test_a_foreign_folder_is_recognised(
    here: Processes, strategy: Strategy, tmp_path: Path, fill: Any, said: str
) -> None:
    folder = tmp_path / "given"
    folder.mkdir()
    fill(folder)
    with pytest.raises(CheckpointError, match=said):
        resumed(here, strategy, tmp_path / "run", str(folder))


def test_a_mistyped_path_is_refused_with_what_is_there(here: Processes, strategy: Strategy, tmp_path: Path) -> None:
    saved(here, strategy, tmp_path, [100]).close()
    with pytest.raises(CheckpointError, match=r"no checkpoint .*stpe-100; there are step-00000100"):
        resumed(here, strategy, tmp_path / "run", str(tmp_path / "checkpoints" / "stpe-100"))
    with pytest.raises(CheckpointError, match="is a file"):
        resumed(here, strategy, tmp_path / "run", str(step_folder(tmp_path, 100) / "manifest.json"))


def test_a_folder_that_may_not_be_read_is_named(
    here: Processes, strategy: Strategy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs the tests may be root, whom no permission stops: so the system's answer is given here."""

    def refuse(path: Path) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    saved(here, strategy, tmp_path / "old", [1]).close()
    monkeypatch.setattr("trainer.checkpoint.folder.contents", refuse)
    with pytest.raises(CheckpointError, match=r"cannot read the checkpoint .*Permission denied"):
        resumed(here, strategy, tmp_path / "run", str(tmp_path / "old"))


# ---- the recipe of a resumed run


def test_what_changed_in_the_recipe_is_said_and_another_model_refused() -> None:
    before = load(RECIPE, ["strategy=single"]).model_dump(mode="json")
    manifest = {"step": 3, "config": before, "data_digest": "x"}
    said: list[str] = []
    now = load(RECIPE, ["strategy=fsdp", "training.steps=9", "training.micro_batch_size=2"])
    compatibility.check(manifest, now, data_digest="x", say=said.append)
    assert any("training.steps 6 → 9" in line and "strategy" not in line for line in said)
    assert any("the learning rate follows the new plan" in line for line in said)
    old = {**before, "model": {key: value for key, value in before["model"].items() if key != "norm_eps"}}
    compatibility.check({**manifest, "config": {**old, "gone": 1}}, now, data_digest="x", say=said.append)
    other = load(RECIPE, ["model.heads=4"])
    with pytest.raises(ConfigError, match=r"model\.heads is 4 in the recipe and 2"):
        compatibility.check(manifest, other, data_digest="x", say=said.append)


def test_the_optimizer_settings_are_the_recipe_s_and_the_moments_the_checkpoint_s(
    here: Processes, strategy: Strategy, tmp_path: Path
) -> None:
    saved(here, strategy, tmp_path, [1]).close()
    other = jobs.prepared(here, load(RECIPE, ["strategy=single", "optimizer.weight_decay=0.5"]))
    assert resumed(here, other, tmp_path) == 1
    assert other.optimizer.param_groups[0]["weight_decay"] == 0.5
    states = jobs.full(strategy.state()), jobs.full(other.state())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_random_numbers_go_on_where_they_were(here: Processes, strategy: Strategy, tmp_path: Path) -> None:
    import random

    import numpy as np

    def draw() -> list[float]:
        return [random.gauss(0, 1), random.random(), np.random.normal(), np.random.random(), float(torch.rand(()))]

    draw()
    kept = saved(here, strategy, tmp_path, [1])
    kept.close()
    expected = draw()
    draw()
    resumed(here, strategy, tmp_path)
    assert draw() == expected


def test_start_afresh_keeps_what_was_there(here: Processes, strategy: Strategy, tmp_path: Path) -> None:
    kept = saved(here, strategy, tmp_path, [1])
    kept.start_afresh()
    kept.close()
    assert steps_in(tmp_path) == []
    aside = next(tmp_path.glob("checkpoints.before-*"))
    assert (aside / "step-00000001" / "manifest.json").exists()
    shutil.rmtree(aside)
