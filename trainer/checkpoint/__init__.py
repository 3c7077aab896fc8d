"""Sharded checkpoints that are complete or not there: in a shared folder, on each node's disk or in object storage.

A checkpoint is a folder step-00000100 in the format of torch.distributed.checkpoint, plus manifest.json with the size
and digest of every file of every rank, written when all ranks have written, synced and read back theirs. It opens
under any strategy and world size. From here:

    store.py    what a place for checkpoints must do      folder.py, bucket.py, peers.py  the two places
    borrowed.py  another run's folder
    plan.py     which rank writes what                    saving.py    one save, in the background
    loading.py  resuming                                  metadata.py  opening files that could be hostile
    claim.py    two runs in one place
    manifest.py, retention.py, random_state.py            compatibility.py  recipes that differ
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from trainer.checkpoint import bucket, folder, loading, retention
from trainer.checkpoint.borrowed import BorrowedFolder
from trainer.checkpoint.claim import Claim
from trainer.checkpoint.loading import Check, Resumed
from trainer.checkpoint.saving import Saved, Saver
from trainer.checkpoint.store import Store, is_bucket, open_store
from trainer.config import CheckpointSection
from trainer.distributed import Processes
from trainer.errors import CheckpointError
from trainer.strategies import Strategy

__all__ = ["Checkpoints", "Resumed", "Saved", "held_parameters"]

AUTO, NEVER = "auto", "never"


class Checkpoints:
    """Saves, finds, loads and retires the checkpoints of one run. All ranks call every method, unless it says not."""

    def __init__(
        self,
        output: Path,
        processes: Processes,
        config: CheckpointSection,
        *,
        say: Callable[[str], None],
        open_at: Callable[..., Store] = open_store,
    ) -> None:
        """config.location: by default <output>/checkpoints. open_at: how a location becomes a store."""
        self._here, self._config, self._say = processes, config, say
        self._scratch = output / "checkpoints" / folder.DOWNLOADS
        location = config.location or str(output / "checkpoints")
        self._store = open_at(location, scratch=self._scratch, processes=processes)
        group = dist.new_group(backend="gloo")
        assert isinstance(group, dist.ProcessGroup)
        self._group = group
        self._resumed_from: int | None = None
        self._claim: Claim | None = None  # the owner's
        self._saver = Saver(
            self._store,
            processes,
            replicas=config.replicas,
            asynchronous=config.asynchronous,
            still_ours=self._still_ours,
            retire=self._retire,
        )
        self._as_owner(self._take, f"use {self._store.place}")

    def _take(self) -> None:
        self._claim = Claim(self._store)
        self._store.clear()

    def _still_ours(self) -> None:
        if self._claim is not None:
            self._claim.check()

    def _as_owner(self, action: Callable[[], None], what: str) -> None:
        self._here.together(lambda: action() if self._store.owner else None, error=CheckpointError, what=what)

    def require_room(self, *, held: int, model: int) -> None:
        """Refuses before training what would fail at a save: no space or inodes on any node, no such bucket.

        held: this rank's parameters; model: all parameters. A checkpoint has 12 bytes for each (float32, two moments).
        """
        parts = self._here.gather((self._store.mates[0], held))
        size = 12 * min(model, sum(part for owner, part in parts if owner == self._store.mates[0]))
        self._as_owner(
            lambda: self._store.check_room(size, keep=self._config.keep), f"keep checkpoints in {self._store.place}"
        )

    # ---- save

    def save(self, step: int, strategy: Strategy, *, facts: dict[str, Any]) -> None:
        """Takes the state of step `step`; with config.asynchronous it is written while training goes on.

        Raises CheckpointError, also when the save before this one failed.
        """
        self._saver.save(step, loading.tensors(strategy.state()), facts)

    @property
    def failed(self) -> bool:
        """Whether a save in the background failed, as far as this rank knows: the ranks agree, then call `wait`."""
        return self._saver.failed

    def wait(self) -> None:
        """Returns when the last save is complete on every node. Raises CheckpointError on all ranks if it failed."""
        self._saver.wait()

    def completed(self) -> list[Saved]:
        """The saves completed since the last call. Any rank may call it alone."""
        return self._saver.completed()

    def close(self) -> None:
        """Lets a save in the background end before the ranks part. Any rank may call it alone."""
        self._saver.close()
        if self._claim is not None:
            with contextlib.suppress(OSError):  # a note that stays names a process that is gone: it stops nobody
                self._claim.release()

    def _retire(self, current: int) -> None:
        found, _, _ = self._store.look()
        for step in retention.superfluous(
            found,
            current=current,
            keep=self._config.keep,
            keep_every_steps=self._config.keep_every_steps,
            keep_best=self._config.keep_best,
            resumed_from=self._resumed_from,
        ):
            self._store.remove(step)

    # ---- load

    def start_afresh(self) -> bool:
        """Moves earlier checkpoints out of the way without deleting them; False when this launch has done so already.

        After that, what is there was written before torchrun restarted the ranks: it is this run's own.
        """
        claim = self._claim
        if any(self._here.gather(claim is not None and claim.afresh)):
            return False

        def move() -> None:
            self._store.set_aside()
            if claim is not None:
                claim.began_afresh()

        self._as_owner(move, f"move the checkpoints of {self._store.place} aside")
        return True

    def resume(self, strategy: Strategy, *, wanted: str = AUTO, check: Check) -> Resumed | None:
        """Loads the newest checkpoint that the ranks hold completely between them; None when there is none at all.

        wanted: "auto", or the checkpoint to begin with while this run has none of its own; it must be there.
        `check(manifest)` may refuse one before anything is loaded. Raises CheckpointError.
        """
        found = self._load(self._store, strategy, check=check)
        if found is not None:
            self._resumed_from = found.step
            if wanted != AUTO:
                self._say(f"note: this run has checkpoints of its own, so {wanted} is not read again")
        elif wanted != AUTO:
            found = self._resume_elsewhere(wanted, strategy, check=check)
        return found

    def _load(self, store: Store, strategy: Strategy, *, check: Check, only: int | None = None) -> Resumed | None:
        return loading.resume(store, strategy, self._here, self._group, check=check, say=self._say, only=only)

    def _resume_elsewhere(self, wanted: str, strategy: Strategy, *, check: Check) -> Resumed:
        """From a checkpoint outside this run; nodes that don't have it are sent what they need."""
        answers = self._here.gather(_find(wanted))
        found = next((answer for answer in answers if not isinstance(answer, str)), None)
        if found is None:
            raise CheckpointError(str(answers[0]))
        location, step = found
        store: Store
        if is_bucket(location):
            store = open_store(location, scratch=self._scratch, processes=self._here)
        else:
            store = BorrowedFolder(Path(location), scratch=self._scratch, processes=self._here)
        resumed = self._load(store, strategy, check=check, only=step)
        if resumed is None:
            raise CheckpointError(f"{wanted} is not a complete checkpoint; give another one.")
        return resumed


def held_parameters(module: nn.Module) -> int:
    """How many parameters this rank holds; its own shard of those that are sharded."""
    weights = (weight.to_local() if isinstance(weight, DTensor) else weight for weight in module.parameters())
    return sum(weight.numel() for weight in weights)


def _find(wanted: str) -> tuple[str, int] | str:
    """(location, step), or why there is none."""
    try:
        if is_bucket(wanted):
            return bucket.find(wanted)
        path, step = folder.find(Path(wanted))
        return str(path), step
    except CheckpointError as error:
        return str(error)
