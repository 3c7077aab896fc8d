"""Sharded checkpoints that are complete or not there, on a shared folder or on each node's own disk.

<output>/checkpoints/step-00000100/ holds the files of torch.distributed.checkpoint that ranks on this disk wrote, the
global `.metadata`, and manifest.json with the size and digest of every file of every rank. The manifest is written
last, before the rename from `.step-00000100.partial`: a folder without one is not a checkpoint.
"""

import json
import pickle
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from trainer.checkpoint_files import (
    MANIFEST,
    METADATA,
    digest_of,
    file_entry,
    is_full,
    move_aside,
    read_manifests,
    remove_partials,
    send_file,
    step_name,
    sync_folder,
    write_atomically,
)
from trainer.distributed import Processes
from trainer.errors import CheckpointError
from trainer.strategies import Strategy


@dataclass(frozen=True)
class Resumed:
    step: int
    manifest: dict[str, Any]


class Checkpoints:
    """Saves, finds, loads and retires the checkpoints of one output folder. Every method is called by all ranks."""

    def __init__(self, output: Path, processes: Processes, *, keep: int, say: Callable[[str], None]) -> None:
        self._folder, self._processes, self._keep, self._say = output / "checkpoints", processes, keep, say
        group = dist.new_group(backend="gloo")  # its own group: a checkpoint's messages never meet the loop's
        assert group is not None
        self._group = group
        self._resumed_from: int | None = None
        # owner: the lowest rank that sees this folder; mates: all ranks that do.
        processes.together(self._create, error=CheckpointError, what=f"use {self._folder}")
        self._mates = self._find_mates()
        self._owner = self._mates[0] == processes.rank
        if self._owner:
            remove_partials(self._folder)
        processes.barrier()

    def _create(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)

    def _find_mates(self) -> list[int]:
        """Ranks whose folder is the same as ours, found by looking: no setting could be wrong."""
        here = self._processes
        nonce = here.from_rank(secrets.token_hex(8) if here.rank == 0 else None, source=0)
        probe = self._folder / f".probe-{nonce}-{here.rank}"
        here.together(lambda: probe.write_bytes(b""), error=CheckpointError, what=f"write to {self._folder}")
        mates = sorted(int(path.name.rpartition("-")[2]) for path in self._folder.glob(f".probe-{nonce}-*"))
        here.barrier()
        probe.unlink()
        return mates

    # ---- save

    def save(self, step: int, strategy: Strategy, *, facts: dict[str, Any]) -> Path:
        """Writes step `step`; when it returns, the checkpoint is complete on every node. Raises CheckpointError."""
        here, what = self._processes, f"write the checkpoint of step {step} to {self._folder}"
        partial, final = self._folder / f".{step_name(step)}.partial", self._folder / step_name(step)

        def clear() -> None:
            if self._owner and partial.exists():
                shutil.rmtree(partial)

        here.together(clear, error=CheckpointError, what=what)
        here.together(lambda: partial.mkdir(exist_ok=True), error=CheckpointError, what=what)
        try:
            dcp.save(
                strategy.state(),
                storage_writer=FileSystemWriter(partial),
                # one copy of what several ranks hold in full, in one file: a node can be sent it whole
                planner=DefaultSavePlanner(dedup_save_to_lowest_rank=True),
                process_group=self._group,
            )
        except CheckpointException as error:  # on every rank, so all may look; torch itself says "unexpected pos"
            full = [folder for folder in here.gather(str(self._folder) if is_full(self._folder) else "") if folder]
            reason = "; ".join(f"disk full at {folder}" for folder in dict.fromkeys(full))
            ranks = ", ".join(str(rank) for rank in sorted(error.failures))
            reason = f"{reason} (rank {ranks}): make room there, then repeat the same run" if full else _reason(error)
            raise CheckpointError(f"cannot {what}: {reason}.") from error
        metadata = here.from_rank((partial / METADATA).read_bytes() if here.rank == 0 else None, source=0)
        files = here.together(lambda: self._own_files(partial), error=CheckpointError, what=what)
        everyone = {name: entry for part in here.gather(files) for name, entry in part.items()}
        manifest = here.from_rank({"step": step, "time": time.time(), **facts, "files": everyone}, source=0)

        def finish() -> None:
            if not self._owner:
                return
            if not (partial / METADATA).exists():
                write_atomically(partial / METADATA, metadata)
            write_atomically(partial / MANIFEST, json.dumps(manifest, indent=1).encode())
            move_aside(final)
            partial.rename(final)
            sync_folder(self._folder)

        here.together(finish, error=CheckpointError, what=what)
        here.together(lambda: self._retire(step), error=CheckpointError, what="remove old checkpoints")
        return final

    def _own_files(self, partial: Path) -> dict[str, dict[str, Any]]:
        rank = self._processes.rank
        names = [path.name for path in partial.glob(f"__{rank}_*")] + ([METADATA] if rank == 0 else [])
        entries = {name: file_entry(partial / name) for name in sorted(names)}
        # A rank with nothing to write leaves an empty file, which no load reads: losing it must not cost a checkpoint.
        return {name: entry for name, entry in entries.items() if entry["size"]}

    def _retire(self, current: int) -> None:
        """Keeps the newest `keep` and the one we resumed from. Steps above ours are not ours to judge."""
        if not self._owner:
            return
        ours = sorted(step for step in read_manifests(self._folder) if step <= current)
        for step in ours[: -self._keep]:
            if step != self._resumed_from:
                # Without its manifest it is no checkpoint, so an interruption here leaves nothing half valid.
                (self._folder / step_name(step) / MANIFEST).unlink()
                shutil.rmtree(self._folder / step_name(step))

    # ---- load

    def start_afresh(self) -> None:
        """Moves earlier checkpoints out of the way without deleting them."""

        def move() -> None:
            if self._owner and read_manifests(self._folder):
                self._folder.rename(self._folder.with_name(f"checkpoints.before-{time.time_ns()}"))
                self._folder.mkdir()

        self._processes.together(move, error=CheckpointError, what=f"move {self._folder} aside")

    def resume(self, strategy: Strategy, *, check: Callable[[dict[str, Any]], None]) -> Resumed | None:
        """Loads the newest checkpoint that the ranks hold completely between them; None when there is none at all.

        `check(manifest)` may refuse it before anything is loaded. Raises CheckpointError when there are checkpoints but
        none is complete: starting from step 0 would silently throw work away.
        """
        mine = read_manifests(self._folder) if self._owner else {}
        known: dict[tuple[int, float], dict[str, Any]] = {}
        for part in self._processes.gather(mine):
            for step, manifest in part.items():
                known[(step, float(manifest["time"]))] = manifest
        problems = []
        for (step, _), manifest in sorted(known.items(), reverse=True):
            holders = self._holders(step, manifest)
            lost = sorted(name for name, ranks in holders.items() if not ranks)
            if lost:
                problems.append(f"checkpoint {step_name(step)} is not usable: no node has intact {', '.join(lost)}")
                self._say(problems[-1])
                continue
            check(manifest)
            self._fetch(step, manifest, strategy, holders=holders)
            self._load(step, strategy)
            self._resumed_from = step
            return Resumed(step=step, manifest=manifest)
        if problems:
            raise CheckpointError(
                f"{problems[0]}, and no older checkpoint in {self._folder} is complete; bring the files back, "
                "or start again with resume: never."
            )
        return None

    def _holders(self, step: int, manifest: dict[str, Any]) -> dict[str, list[int]]:
        """File name → owner ranks whose folder has it intact. Ranks on one folder share the work of hashing."""
        names = sorted(manifest["files"])
        share = names[self._mates.index(self._processes.rank) :: len(self._mates)]
        folder = self._folder / step_name(step)
        intact = [name for name in share if digest_of(folder / name) == manifest["files"][name]]
        holders: dict[str, list[int]] = {name: [] for name in names}
        for owner, found in self._processes.gather((self._mates[0], intact)):
            for name in found:
                holders[name].append(owner)
        return holders

    def _fetch(self, step: int, manifest: dict[str, Any], strategy: Strategy, *, holders: dict[str, list[int]]) -> None:
        """Brings to each node the files that its ranks' load plans read and that only other nodes have."""
        here, folder = self._processes, self._folder / step_name(step)
        what = f"complete {folder}"
        here.together(lambda: folder.mkdir(exist_ok=True), error=CheckpointError, what=what)
        self._send(
            METADATA, manifest, folder, needs={METADATA: set(_folder_owners(here, self._mates))}, holders=holders
        )
        needed = here.together(lambda: self._needed(folder, strategy), error=CheckpointError, what=what)
        needs: dict[str, set[int]] = {}
        for owner, names in here.gather((self._mates[0], sorted(needed))):
            for name in names:
                needs.setdefault(name, set()).add(owner)
        for name in sorted(needs):
            self._send(name, manifest, folder, needs=needs, holders=holders)

        def complete() -> None:
            if self._owner:
                write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1).encode())

        here.together(complete, error=CheckpointError, what=what)

    def _send(
        self,
        name: str,
        manifest: dict[str, Any],
        folder: Path,
        *,
        needs: dict[str, set[int]],
        holders: dict[str, list[int]],
    ) -> None:
        missing = needs[name] - set(holders[name])
        if missing:
            entry = manifest["files"][name]
            receives = self._processes.rank in missing
            send_file(self._processes, folder / name, entry, source=min(holders[name]), receives=receives)

    def _needed(self, folder: Path, strategy: Strategy) -> set[str]:
        # The digest in the manifest was verified before, so this is the file that we wrote.
        metadata = pickle.loads((folder / METADATA).read_bytes())  # noqa: S301
        planner = DefaultLoadPlanner()
        planner.set_up_planner(strategy.state(), metadata, is_coordinator=False)
        plan = planner.create_local_plan()
        return {metadata.storage_data[item.storage_index].relative_path for item in plan.items}

    def _load(self, step: int, strategy: Strategy) -> None:
        state = strategy.state()
        folder = self._folder / step_name(step)
        try:
            dcp.load(state, storage_reader=FileSystemReader(folder), process_group=self._group)
        except CheckpointException as error:
            raise CheckpointError(f"cannot load {folder}: {_reason(error)}.") from error
        strategy.load_state(state)


def _folder_owners(processes: Processes, mates: list[int]) -> list[int]:
    """The owner ranks of all folders."""
    return sorted(set(processes.gather(mates[0])))


def _reason(error: CheckpointException) -> str:
    return "; ".join(f"rank {rank}: {failure[0]}" for rank, failure in sorted(error.failures.items()))
