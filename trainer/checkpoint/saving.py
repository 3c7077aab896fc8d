"""One save: at the step the state is copied to memory; written, checked and completed while training goes on."""

from __future__ import annotations

import io
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.tensor import DTensor

from trainer.checkpoint import random_state
from trainer.checkpoint.manifest import METADATA, RANDOM, VERSION
from trainer.checkpoint.plan import Part, divide
from trainer.checkpoint.store import Entry, Store
from trainer.distributed import Processes
from trainer.errors import CheckpointError

# The first rank to end its upload waits for the last one. A rank that is lost closes its connections, which is noticed
# at once; one that hangs is found by the watchdog, when the loop waits for the save.
_NO_LIMIT = timedelta(days=30)

_Written = tuple[list[tuple[MetadataIndex, _StorageInfo]], dict[str, Entry]]


@dataclass(frozen=True)
class Saved:
    """A checkpoint that is complete everywhere."""

    step: int
    seconds: float
    """From the step to complete."""
    stall_s: float
    """How long training stood still for it."""


@dataclass(frozen=True)
class _Snapshot:
    """All that the background needs of the step: nothing in it changes while training goes on."""

    step: int
    values: dict[MetadataIndex, Tensor | bytes]
    random: dict[str, Tensor]
    facts: dict[str, Any]
    began: float
    stall_s: float


class Saver:
    """Writes checkpoints to a store, one at a time.

    On the owner, `still_ours()` runs before what is in the place changes, and raises OSError when it is another run's
    by now; `retire(step)` runs after a checkpoint is complete.
    """

    def __init__(
        self,
        store: Store,
        processes: Processes,
        *,
        replicas: str,
        asynchronous: bool,
        still_ours: Callable[[], None],
        retire: Callable[[int], None],
    ) -> None:
        self._store, self._here, self._still_ours, self._retire = store, processes, still_ours, retire
        self._everywhere, self._asynchronous = replicas == "all", asynchronous
        # Its own group: messages of a save in the background would otherwise mix with the loop's, and both hang.
        group = dist.new_group(backend="gloo", timeout=_NO_LIMIT)
        assert isinstance(group, dist.ProcessGroup)
        self._background = replace(processes, control=group)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._running: Future[Saved] | None = None
        self._running_step = 0
        self._done: list[Saved] = []
        self._held: list[Any] | None = None
        self._parts: list[Part] = []
        self._metadata: Metadata | None = None  # rank 0's
        self._buffers: dict[MetadataIndex, Tensor] = {}

    def save(self, step: int, state: dict[str, Any], facts: dict[str, Any]) -> None:
        """Returns when `state` may change again. Raises CheckpointError on all ranks, also for the save before."""
        self.wait()
        began = time.monotonic()
        planner = DefaultSavePlanner()
        planner.set_up_planner(state, is_coordinator=True)
        self._plan(planner)
        items = [item for part in self._parts for item in part.items]
        values = {item.index: self._copy(item.index, _resolve(planner, item)) for item in items}
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()  # the copies above don't wait for the GPU one by one
        stall_s = time.monotonic() - began
        snapshot = _Snapshot(step, values, random_state.capture(), facts, began, stall_s)
        self._running_step, self._running = step, self._thread.submit(self._write, snapshot)
        if not self._asynchronous:
            self.wait()

    def _plan(self, planner: DefaultSavePlanner) -> None:
        """Agrees with all ranks on who writes what, unless each holds what it held at the save before."""
        outline = [(name, *_outline(value)) for name, value in planner.state_dict.items()]
        if not self._here.sum(float(outline != self._held))[0]:
            return
        self._held, self._buffers = outline, {}
        held = planner.create_local_plan()
        here, group = self._here, self._here.control
        plans: list[Any] | None = [None] * here.world if here.rank == 0 else None
        dist.gather_object(held, plans, dst=0, group=group)
        shares: list[Any] = [None] * here.world
        if plans is not None:
            shares, self._metadata = divide(plans, self._places(), everywhere=self._everywhere)
        else:
            self._places()
        box: list[Any] = [None]
        dist.scatter_object_list(box, shares, src=0, group=group)
        self._parts = box[0]

    def _places(self) -> list[int]:
        return self._here.gather(self._store.mates[0])

    def _copy(self, index: MetadataIndex, value: Tensor | io.BytesIO) -> Tensor | bytes:
        """Into the buffer of the save before: memory for each save anew would be slow, and grow."""
        if isinstance(value, io.BytesIO):
            return value.getvalue()
        value = value.detach()
        if not self._asynchronous:
            return value
        buffer = self._buffers.get(index)
        if buffer is None:
            buffer = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
            self._buffers[index] = buffer
        return buffer.copy_(value, non_blocking=True)

    # ---- in the background

    def _write(self, snapshot: _Snapshot) -> Saved:
        try:
            return self._write_and_complete(snapshot)
        except CheckpointError:
            self._as_owner_if_possible(lambda: self._abandon(snapshot.step), "remove what a failed save wrote")
            raise

    def _abandon(self, step: int) -> None:
        self._still_ours()  # else the files could be another run's
        self._store.abandon(step)

    def _as_owner(self, action: Callable[[], None], what: str) -> None:
        def act() -> None:
            if self._store.owner:
                self._still_ours()
                action()

        self._background.together(act, error=CheckpointError, what=what)

    def _as_owner_if_possible(self, action: Callable[[], None], what: str) -> None:
        """For tidying: no reason to end a run, nor to hide why a save failed."""
        try:
            if self._store.owner:
                action()
        except OSError as error:
            text = f"note: cannot {what} in {self._store.place} ({error}); the next start tries again"
            print(text, file=sys.stderr, flush=True)

    def _write_and_complete(self, snapshot: _Snapshot) -> Saved:
        here, store, step = self._background, self._store, snapshot.step
        what = f"write the checkpoint of step {step} to {store.place}"
        self._as_owner(lambda: store.begin(step), what)
        items, entries = here.together(lambda: self._write_parts(snapshot), error=CheckpointError, what=what)
        gathered: list[Any] | None = [None] * here.world if here.rank == 0 else None
        dist.gather_object((items, entries, snapshot.random), gathered, dst=0, group=here.control)
        small = self._small_files(gathered) if gathered else None
        files, listed = here.from_rank(small, source=0)

        def write_small() -> dict[str, Entry]:
            return {name: self._put(step, name, [memoryview(data)]) for name, data in files.items() if store.owner}

        entries = {**listed, **here.together(write_small, error=CheckpointError, what=what)}
        manifest = {"version": VERSION, "step": step, "time": time.time(), **snapshot.facts, "files": entries}
        manifest = here.from_rank(manifest, source=0)
        self._as_owner(lambda: store.complete(step, manifest), what)
        # Only now is it certain, on every rank, that the older ones aren't needed.
        self._as_owner_if_possible(lambda: self._retire(step), "remove old checkpoints")
        seconds = time.monotonic() - snapshot.began
        return Saved(step, seconds, snapshot.stall_s if self._asynchronous else seconds)

    def _write_parts(self, snapshot: _Snapshot) -> _Written:
        places: list[tuple[MetadataIndex, _StorageInfo]] = []
        entries = {}

        def pieces(part: Part) -> Iterator[memoryview]:
            offset = 0
            for item in part.items:
                data = _serialise(snapshot.values[item.index])
                places.append((item.index, _StorageInfo(part.name, offset, data.nbytes)))
                offset += data.nbytes
                yield data

        for part in self._parts:
            entries[part.name] = self._put(snapshot.step, part.name, pieces(part))
        return places, entries

    def _put(self, step: int, name: str, pieces: Any) -> Entry:
        try:
            entry = self._store.put(step, name, pieces)
        except (RuntimeError, MemoryError) as error:  # torch's own: all ranks must learn of it, so that none waits
            raise OSError(f"{name}: {error}") from error
        if self._store.reread(step, name) != entry:
            raise OSError(f"{name} reads back differently from what was written: the storage is not reliable")
        return entry

    def _small_files(self, gathered: list[Any]) -> tuple[dict[str, bytes], dict[str, Entry]]:
        """On rank 0: the files that each folder gets, and the manifest's entries of all the others."""
        assert self._metadata is not None
        stored: dict[MetadataIndex, _StorageInfo] = {}
        entries: dict[str, Entry] = {}
        random: dict[str, Tensor] = {}
        for rank, (places, written, states) in enumerate(gathered):
            for index, info in places:
                stored.setdefault(index, info)
            for name, entry in written.items():
                first = entries.setdefault(name, entry)
                if entry["sha256"] != first["sha256"] and entry["size"] == first["size"]:
                    entries[name] = {**first, "variants": sorted({*first.get("variants", ()), entry["sha256"]})}
            random |= {f"{rank}/{name}": state for name, state in states.items()}
        metadata = replace(self._metadata, storage_data=stored, version=CURRENT_DCP_VERSION)
        return {METADATA: pickle.dumps(metadata), RANDOM: safetensors.torch.save(random)}, entries

    # ---- the end of a save

    @property
    def failed(self) -> bool:
        """Whether the save in the background has failed on this rank; `wait` then raises it, on all ranks."""
        return self._running is not None and self._running.done() and self._running.exception() is not None

    def wait(self) -> None:
        """Until the save in the background is complete. Called by all ranks; raises CheckpointError on all."""
        problem = None
        if self._running is not None:
            error = self._running.exception()
            if error is None:
                self._done.append(self._running.result())
            elif isinstance(error, CheckpointError):
                problem = str(error)
            else:
                step, rank = self._running_step, self._here.rank
                problem = f"cannot write the checkpoint of step {step} to {self._store.place} (rank {rank}: {error!r})."
            self._running = None
        problems = [text for text in self._here.gather(problem) if text]
        if problems:
            raise CheckpointError(problems[0])

    def completed(self) -> list[Saved]:
        """What was completed since the last call. Communicates with nobody."""
        if self._running is not None and self._running.done() and self._running.exception() is None:
            self._done.append(self._running.result())
            self._running = None
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """Lets a save in the background end, well or not: the ranks' connections are needed until then."""
        self._thread.shutdown(wait=True)


def _outline(value: Any) -> tuple[Any, ...]:
    """What a plan depends on: two values of one outline are written to the same places."""
    if not isinstance(value, Tensor):
        return (type(value),)
    mesh, placements = getattr(value, "device_mesh", None), getattr(value, "placements", None)
    return type(value), value.shape, value.dtype, placements, mesh


def _resolve(planner: DefaultSavePlanner, item: WriteItem) -> Tensor | io.BytesIO:
    """This rank's part of an item; torch's own way for tensors takes as long as copying them."""
    value = planner.state_dict[item.index.fqn]
    if isinstance(value, DTensor):
        return value.to_local()
    return value if isinstance(value, Tensor) else planner.resolve_data(item)


def _serialise(value: Tensor | bytes) -> memoryview:
    """In memory first: torch's own writer hides why a disk refused, and knows no object storage."""
    if isinstance(value, bytes):
        return memoryview(value)
    value = value.cpu()
    if value.untyped_storage().nbytes() != value.nbytes:
        value = value.clone()  # torch.save would write the whole storage of a view
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getbuffer()
