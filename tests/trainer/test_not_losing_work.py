"""What would lose work silently: two runs in one place, saves that fail, folders that are linked or read-only."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.trainer import checkpoint_jobs as jobs
from tests.trainer.conftest import RECIPE, ROOT
from trainer import optim
from trainer.checkpoint.claim import NOTE
from trainer.checkpoint.folder import Folder
from trainer.config import WatchSection
from trainer.distributed import Processes
from trainer.errors import CheckpointError, ConfigError
from trainer.recipe_file import load
from trainer.strategies import Strategy, make_strategy
from trainer.watch.bad_steps import BadSteps


def save(here: Processes, strategy: Strategy, output: Path, *steps: int) -> None:
    kept = jobs.checkpoints(here, output)
    for step in steps:
        kept.save(step, strategy, facts=jobs.FACTS)
    kept.wait()
    kept.close()


def resumed(here: Processes, strategy: Strategy, output: Path, wanted: str = "auto") -> int | None:
    kept = jobs.checkpoints(here, output)
    found = kept.resume(strategy, wanted=wanted, check=lambda _: None)
    kept.close()
    return None if found is None else found.step


# ---- the state that is saved


def test_a_state_before_the_first_step_counts_no_step(here: Processes) -> None:
    fresh = jobs.prepared(here, load(RECIPE, ["strategy=single"]))
    moments = fresh.state()["optimizer"]["state"]
    assert {float(each["step"]) for each in moments.values()} == {0.0}


class WithUnused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.used(inputs)


def test_a_parameter_without_gradient_does_not_keep_a_run_from_resuming(here: Processes, tmp_path: Path) -> None:
    def prepared(name: str = "single") -> Strategy:
        recipe = load(RECIPE, [f"strategy={name}"])
        made = make_strategy(here, recipe)
        made.prepare(WithUnused(), lambda weights: optim.make_optimizer(recipe.optimizer, weights))
        return made

    def backward(strategy: Strategy) -> None:
        strategy.backward(lambda: strategy.module(torch.ones(1, 2)).square().sum(), last=True)

    with pytest.raises(ConfigError, match=r"2 parameters got no gradient, unused\.weight first"):
        backward(prepared("ddp"))  # its averages would be wrong
    first = prepared()
    backward(first)
    first.clip_and_step(1.0)
    save(here, first, tmp_path, 1)
    second = prepared()
    assert resumed(here, second, tmp_path) == 1
    expected, found = jobs.full(first.state()), jobs.full(second.state())
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_a_resumed_judge_knows_the_losses_before() -> None:
    config = WatchSection(spike_factor=6, max_bad_steps=3)
    before, after = BadSteps(config), BadSteps(config)
    for number in range(20):
        before.good(3.0 + 0.01 * (number % 3))
    before.bad(21, "the loss is nan")
    after.resume(json.loads(json.dumps(before.facts())))
    assert "spike" in (after.problem(3.5) or "")
    assert (after.total, after.in_a_row) == (1, 1)
    old = BadSteps(config)
    old.resume(4)  # the first form
    assert old.total == 4


# ---- whole runs


def probe(code: str, *arguments: str) -> None:
    """In a process of its own: here, the ranks are joined already."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


WHOLE_RUNS = """
import json, shutil, sys
from pathlib import Path
import pytest
from trainer.errors import Stopped
from trainer.recipe_file import load
from trainer.train import train
from trainer.watch.stop import StopFlag

root = Path(sys.argv[1])

def run(output):
    train(load(Path(sys.argv[2]), ["strategy=single", "metrics.sinks=[jsonl]", f"output_dir={output}"]))

def losses(output):
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if line["event"] == "step"}

run(root / "whole")
enter = StopFlag.__enter__
StopFlag.__enter__ = lambda self: (enter(self), self.set("asked before the first step"))[0]
with pytest.raises(Stopped, match="step 0"):
    run(root / "stopped")
StopFlag.__enter__ = enter
run(root / "stopped")
assert losses(root / "stopped") == losses(root / "whole"), "a stop before the first step"

whole = json.loads((root / "whole" / "finished.json").read_text())
(root / "whole" / "finished.json").unlink()  # killed between the last checkpoint and the result
run(root / "whole")
assert json.loads((root / "whole" / "finished.json").read_text()) == whole, "the result"
(root / "whole" / "finished.json").write_bytes(b"\\xff")  # damaged
run(root / "whole")
assert json.loads((root / "whole" / "finished.json").read_text()) == whole, "the result once more"
"""


def test_a_run_stopped_before_its_first_or_killed_after_its_last_step_ends_like_any_other(tmp_path: Path) -> None:
    probe(WHOLE_RUNS, str(tmp_path), str(RECIPE))


# ---- two runs in one place


@contextmanager
def other_process(folder: Path, launch: str = "") -> "Iterator[subprocess.Popen[str]]":
    """A living process whose note is in the folder. launch: torchrun's --rdzv-id."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from trainer.checkpoint.claim import Claim\n"
        "class Place:\n"
        "    place = sys.argv[1]\n"
        "    path = Path(place) / '.writer.json'\n"
        "    def read_note(self): return self.path.read_bytes() if self.path.exists() else None\n"
        "    def write_note(self, data): self.path.write_bytes(data)\n"
        "Claim(Place())\n"
        "print('claimed', flush=True)\n"
        "sys.stdin.read()\n"
    )
    folder.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        cwd=ROOT,
        env={**os.environ, "TORCHELASTIC_RUN_ID": launch},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "claimed\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_run_is_refused_while_the_first_one_lives_and_not_after_its_end(
    here: Processes, strategy: Strategy, tmp_path: Path
) -> None:
    with other_process(tmp_path / "checkpoints") as other:
        reason = f"another run writes there, process {other.pid} on .*another output_dir"
        with pytest.raises(CheckpointError, match=reason):
            jobs.checkpoints(here, tmp_path)
    save(here, strategy, tmp_path, 1)
    assert resumed(here, strategy, tmp_path) == 1


@pytest.mark.parametrize("launch", ["", "none"])
def test_a_start_that_was_refused_is_refused_again_when_torchrun_repeats_it(
    here: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launch: str
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", launch)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with (
        other_process(tmp_path / "checkpoints", launch),
        pytest.raises(CheckpointError, match="another run writes there"),
    ):
        jobs.checkpoints(here, tmp_path)


@pytest.mark.parametrize(
    ("case", "facts"),
    [
        ("a new node has the host name of the one it replaces", {"boot": "another"}),
        ("the pid was given to another process", {"started": 1}),
        ("the kernel says nothing of its start", {"boot": ""}),
        ("the note has another form", {"form": 2}),
    ],
)
def test_a_start_is_not_refused_for_a_process_that_only_looks_like_the_one_before(
    here: Processes, tmp_path: Path, case: str, facts: dict[str, Any]
) -> None:
    with other_process(tmp_path / "checkpoints"):
        note = tmp_path / "checkpoints" / NOTE
        note.write_text(json.dumps({**json.loads(note.read_text()), **facts}))
        jobs.checkpoints(here, tmp_path).close()
    assert json.loads(note.read_text())["pid"] is None, case  # let go of it, so it was ours


def test_the_launch_that_has_a_place_may_start_again_beside_what_hangs_of_it(
    here: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    with other_process(tmp_path / "checkpoints", "one"):
        jobs.checkpoints(here, tmp_path).close()


def test_a_run_whose_place_was_taken_over_from_elsewhere_writes_and_removes_nothing_more(
    here: Processes, strategy: Strategy, tmp_path: Path
) -> None:
    kept = jobs.checkpoints(here, tmp_path)
    kept.save(1, strategy, facts=jobs.FACTS)
    kept.wait()
    note = tmp_path / "checkpoints" / NOTE
    # A container elsewhere may have the same host name, pid and time of start.
    note.write_text(json.dumps({**json.loads(note.read_text()), "start": "another"}))
    theirs = tmp_path / "checkpoints" / ".step-00000002.partial"
    theirs.mkdir()
    kept.save(2, strategy, facts=jobs.FACTS)
    with pytest.raises(CheckpointError, match=r"another run has taken over .*process \d+ on "):
        kept.wait()
    kept.close()
    assert theirs.exists()
    assert json.loads(note.read_text())["start"] == "another"


def test_starting_afresh_counts_once_a_launch(
    here: Processes, strategy: Strategy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(here, strategy, tmp_path, 1)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    kept = jobs.checkpoints(here, tmp_path)
    assert kept.start_afresh()
    kept.save(2, strategy, facts=jobs.FACTS)
    kept.wait()
    kept.close()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")  # torchrun restarts the ranks
    again = jobs.checkpoints(here, tmp_path)
    assert not again.start_afresh()
    again.close()
    assert resumed(here, strategy, tmp_path) == 2
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "two")
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT")
    assert jobs.checkpoints(here, tmp_path).start_afresh()


# ---- what failed and killed saves leave


def test_a_save_that_fails_leaves_no_files(here: Processes, strategy: Strategy, tmp_path: Path) -> None:
    class Full(Folder):
        def put(self, step: int, name: str, pieces: Iterable[memoryview]) -> dict[str, Any]:
            super().put(step, name, pieces)
            raise OSError(28, "No space left on device")

    kept = jobs.checkpoints(here, tmp_path, lambda location, **_: Full(Path(location), here))
    kept.save(1, strategy, facts=jobs.FACTS)
    with pytest.raises(CheckpointError, match="No space left"):
        kept.wait()
    kept.close()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [NOTE]


def test_an_old_checkpoint_that_cannot_be_removed_does_not_end_the_run(
    here: Processes, strategy: Strategy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Clings(Folder):
        def remove(self, step: int) -> None:
            raise OSError(16, "Device or resource busy", f"step {step}")

    kept = jobs.checkpoints(here, tmp_path, lambda location, **_: Clings(Path(location), here), keep=1)
    for step in (1, 2):
        kept.save(step, strategy, facts=jobs.FACTS)
    kept.wait()
    kept.close()
    assert "cannot remove old checkpoints" in capsys.readouterr().err
    assert resumed(here, strategy, tmp_path) == 2


def test_a_start_removes_what_a_killed_one_left(here: Processes, strategy: Strategy, tmp_path: Path) -> None:
    save(here, strategy, tmp_path, 1)
    place = tmp_path / "checkpoints"
    left = [place / ".download" / "step-00000001" / "x", place / ".probe-ab-0", place / "step-00000001" / ".m.json.tmp"]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    assert resumed(here, strategy, tmp_path) == 1
    assert not any(path.exists() for path in left)


# ---- links, and folders of others


def test_a_linked_checkpoint_is_forgotten_without_touching_what_it_leads_to(
    here: Processes, strategy: Strategy, tmp_path: Path
) -> None:
    save(here, strategy, tmp_path / "other", 1)
    theirs = tmp_path / "other" / "checkpoints" / "step-00000001"
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    link = tmp_path / "run" / "checkpoints" / "step-00000001"
    link.symlink_to(theirs)
    kept = jobs.checkpoints(here, tmp_path / "run", keep=1)
    kept.save(2, strategy, facts=jobs.FACTS)
    kept.wait()
    kept.close()
    assert not os.path.lexists(link)
    assert resumed(here, strategy, tmp_path / "other") == 1


def test_starting_afresh_keeps_the_disk_that_a_link_means(here: Processes, strategy: Strategy, tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "big")
    save(here, strategy, tmp_path / "run", 1)
    kept = jobs.checkpoints(here, tmp_path / "run")
    kept.start_afresh()
    kept.close()
    save(here, strategy, tmp_path / "run", 2)
    assert (tmp_path / "big" / "step-00000002" / "manifest.json").exists()
    assert len(list(tmp_path.glob("big.before-*/step-00000001"))) == 1


def test_another_run_s_checkpoint_is_begun_with_and_left_as_it_is(
    here: Processes, strategy: Strategy, tmp_path: Path
) -> None:
    """Root may write anywhere: so what would be written there is looked at instead."""
    save(here, strategy, tmp_path / "old", 1)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "old").rglob("*")}
    assert resumed(here, strategy, tmp_path / "new", str(tmp_path / "old")) == 1
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "old").rglob("*")} == before


# ---- damaged manifests and metadata


@pytest.mark.parametrize("entry", [{"size": 3}, {"size": "3", "sha256": "x"}, {"sha256": "x"}, None])
def test_a_manifest_whose_entries_are_none_is_refused(
    here: Processes, strategy: Strategy, tmp_path: Path, entry: Any
) -> None:
    save(here, strategy, tmp_path, 1)
    path = tmp_path / "checkpoints" / "step-00000001" / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest["files"]["__0_0.distcp"] = entry
    path.write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="not one of this trainer's manifests"):
        resumed(here, strategy, tmp_path)


def test_metadata_that_leads_to_files_of_no_manifest_is_refused(
    here: Processes, strategy: Strategy, tmp_path: Path
) -> None:
    save(here, strategy, tmp_path, 1)
    path = tmp_path / "checkpoints" / "step-00000001" / "manifest.json"
    manifest = json.loads(path.read_bytes())
    del manifest["files"]["__0_0.distcp"]
    path.write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"wants __0_0.distcp, which is no file of this checkpoint"):
        resumed(here, strategy, tmp_path)
