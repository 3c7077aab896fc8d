"""Why the run ended, for ranks that only see a connection close: the first rank that fails by itself leaves a note.

The note is in the rendezvous store before the rank closes its connections, so it is there when the others notice.
Under torchrun the store outlives the ranks; otherwise it ends with rank 0, whose own failure nobody else can read then.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch.distributed as dist

from trainer import errors, strict_json
from trainer.errors import TrainerError
from trainer.watch.beats import bounded

_STORE_S = 10.0  # for an answer of the store
_LEAVE_S = 2.0  # for the other ranks to end too
_LOOK_S = 0.02  # between looks whether they have
_CLOSED = re.compile(r"/gloo/.*(closed by peer|reset by peer|Broken pipe)", re.IGNORECASE)


@dataclass(frozen=True)
class Note:
    """What ended a rank. kind: a class of trainer.errors."""

    rank: int
    host: str
    kind: str
    text: str


def notes_in(store: dist.Store) -> dist.Store:
    """Where notes are left. Made at the start: a new connection would wait for a server that is gone by then."""
    return dist.PrefixStore("failure", store.clone())


def explained(error: Exception, notes: dist.Store, *, rank: int, world: int) -> Exception:
    """What this rank should raise: `error`, or what ended the rank that it only misses.

    Called before this rank's connections are closed.
    """
    reason: Exception = error
    if any(_is_lost_connection(each) for each in _chain(error)):
        reason = _first(notes) or _unexplained(error, rank) or error
    else:
        text = strict_json.encode(asdict(_note(error, rank)))
        bounded(lambda: notes.compare_set("first", "", text), _STORE_S)
    _wait_for_others(notes, rank=rank, world=world)
    return reason


def _first(notes: dist.Store) -> TrainerError | None:
    """What the first rank to fail said; None when it was killed, or its node is gone."""
    found = bounded(lambda: notes.get("first") if notes.check(["first"]) else b"", _STORE_S)
    if not found:
        return None
    note = Note(**strict_json.decode(found))
    kind: type[TrainerError] = getattr(errors, note.kind)
    return kind(f"rank {note.rank} on {note.host}: {note.text}")


def _unexplained(error: Exception, rank: int) -> TrainerError | None:
    """For a rank that ended without a note. None when no connection was lost: then the traceback is needed."""
    chain = list(_chain(error))
    found = next((str(each) for each in chain if _CLOSED.search(str(each))), None)
    if found is not None:
        peer = re.search(r"\[[^\[\]]+\]:\d+", found)
        other, seen = f"another rank ({peer[0] if peer else 'unknown'})", "Torchrun's report names it"
    elif any(isinstance(each, dist.DistNetworkError) for each in chain):
        other, seen = "the store of the ranks (torchrun's, or rank 0's)", "Look at rank 0's node"
    else:
        return None
    return TrainerError(
        f"rank {rank} on {socket.gethostname()} lost its connection to {other}, which ended without a word: killed, "
        f"perhaps for want of memory, or its node is gone. {seen}, and that node's kernel log may say "
        "why; the same command goes on from the last checkpoint."
    )


def _wait_for_others(notes: dist.Store, *, rank: int, world: int) -> None:
    """Without torchrun the store ends with rank 0: those that end at the same time finish with it before."""
    ended = bounded(lambda: notes.add("ended", 1), _STORE_S)
    if rank or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return
    deadline = time.monotonic() + _LEAVE_S
    while ended is not None and ended < world and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        ended = bounded(lambda: notes.add("ended", 0), _STORE_S)


def _note(error: Exception, rank: int) -> Note:
    if isinstance(error, TrainerError):
        return Note(rank, socket.gethostname(), type(error).__name__, str(error))
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}; see the traceback in that rank's output."
    return Note(rank, socket.gethostname(), TrainerError.__name__, reason)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it came from: a lost connection may show inside the user's own functions."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_lost_connection(error: BaseException) -> bool:
    """Whether a collective failed. gloo's errors have no class of their own; each has its source file's path."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "/gloo/" in str(error))
