"""Who is where: each rank writes its place to the rendezvous store, which no hung collective can block.

Under torchrun the store lives in the agent's process, so it answers also when rank 0 hangs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

import torch.distributed as dist

from trainer import strict_json

T = TypeVar("T")


@dataclass(frozen=True)
class Beat:
    """A rank's sign of life. `ticks` counts what it has begun: all ranks begin the same things in the same order."""

    rank: int
    host: str
    pid: int
    number: int  # grows while the process's threads run
    ticks: int
    step: int
    phase: str

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid} on {self.host})"

    @property
    def place(self) -> str:
        return f"step {self.step}, {self.phase}"


def write(store: dist.Store, beat: Beat) -> None:
    store.set(f"beat/{beat.rank}", strict_json.encode(asdict(beat)))


def read(store: dist.Store, world: int) -> list[Beat | None]:
    """Every rank's last beat; None for a rank that never had one."""
    return [
        Beat(**strict_json.decode(store.get(f"beat/{rank}"))) if store.check([f"beat/{rank}"]) else None
        for rank in range(world)
    ]


def blame(before: Sequence[Beat | None] | None, after: Sequence[Beat | None] | None) -> str:
    """Which rank the others wait for, judged from two readings some beats apart (None: the store didn't answer)."""
    if before is None or after is None:
        return "the rendezvous store does not answer: the node of rank 0 is gone, stopped or cut off."
    silent = [new for old, new in zip(before, after, strict=True) if new and old and old.number == new.number]
    never = [rank for rank, beat in enumerate(after) if beat is None]
    if never:
        return f"rank {_listed([str(rank) for rank in never])} never began."
    if silent:
        named = _listed([f"{beat}, last seen in {beat.place}" for beat in silent])
        return f"silent: {named}. Its process is stopped or gone, or its node is cut off."
    beats = [beat for beat in after if beat is not None]
    least, most = min(beats, key=lambda beat: beat.ticks), max(beats, key=lambda beat: beat.ticks)
    if least.ticks == most.ticks:
        return f"all ranks answer and are at the same place ({least.place}): look at the network and at the stacks."
    behind = [beat for beat in beats if beat.ticks == least.ticks]
    named = _listed([f"{beat} in {beat.place}" for beat in behind])
    return f"furthest behind: {named}; others are in {most.place}."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def bounded(call: Callable[[], T], seconds: float) -> T | None:
    """What `call` gives within the time; None when it takes longer or a connection fails. It must not need a GPU."""
    results: list[T] = []

    def run() -> None:
        try:
            results.append(call())
        except (RuntimeError, OSError):  # torch's store and recorder errors are RuntimeErrors
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else None
