"""A store of this start of the ranks alone.

torchrun's store can outlive the ranks: after a restart it still holds what they left before, such as the addresses of
ended processes, a note why they ended, or a wish to stop. Nothing that torchrun tells a rank differs between two starts
and is equal on all ranks (an agent that joined later counts its own restarts), so the ranks agree on a name.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch.distributed as dist

from trainer.errors import GraceOver, TrainerError
from trainer.launched import orphaned
from trainer.watch.stop import taken_over

_LOOK_S = 0.02  # between looks for ranks that came
_AGENT_S = 0.5  # between looks whether torchrun is there


@contextmanager
def ends_at_once() -> Iterator[None]:
    """Ends this process, though it is blocked, when it is asked to stop or torchrun was killed, maybe with its store.

    For the time before the watchdog runs, when there is nothing to save. Python's own handlers of signals would have to
    wait for the call that is blocked.
    """
    joined = threading.Event()

    def look() -> None:
        while not joined.wait(_AGENT_S):
            if orphaned():
                with suppress(OSError):  # who read the output may be gone too
                    text = (
                        f"torchrun's process on {socket.gethostname()} is gone, and not all ranks had joined: nothing "
                        "was trained in this start; the same command goes on."
                    )
                    print(text, file=sys.stderr, flush=True)
                os._exit(GraceOver.exit_code)

    before = {number: signal.signal(number, signal.SIG_DFL) for number in taken_over()}
    thread = threading.Thread(target=look, name="joining", daemon=True)
    thread.start()
    try:
        yield
    finally:
        joined.set()
        thread.join()
        for number, handler in before.items():
            signal.signal(number, handler)


def fresh(store: dist.Store, *, rank: int, world: int, timeout: timedelta) -> dist.Store:
    """The part of `store` that no earlier start of the ranks has written to.

    Each rank asks with a word of its own, so an answer to an earlier start is never taken for one to this.

    Raises TrainerError when ranks don't come within `timeout`.
    """
    try:
        name = _answer_all(store, world, timeout) if rank == 0 else _ask(store, rank, timeout)
    except dist.DistError as error:  # no answer, or rank 0 that has ended, and the store with it
        raise TrainerError(
            f"rank {rank} did not find the other {world - 1} ranks, waiting {timeout.total_seconds():.0f} s at most; "
            "look at the output of ranks that ended, and whether the nodes reach the rendezvous address."
        ) from error
    return dist.PrefixStore(name, store)


def _ask(store: dist.Store, rank: int, timeout: timedelta) -> str:
    word = uuid.uuid4().hex
    store.set(f"joining/{rank}", word)
    store.wait([f"start/{word}"], timeout)
    name = store.get(f"start/{word}").decode()
    store.set(f"{name}/here/{rank}", "")
    return name


def _answer_all(store: dist.Store, world: int, timeout: timedelta) -> str:
    """Answers each word it sees until all ranks have had an answer to the word of this start."""
    name = uuid.uuid4().hex
    asking = [f"joining/{rank}" for rank in range(1, world)]
    here = [f"{name}/here/{rank}" for rank in range(1, world)]
    answered: set[bytes] = set()
    deadline = time.monotonic() + timeout.total_seconds()
    if asking:
        store.wait(asking, timeout)
    while here and not store.check(here):
        if time.monotonic() > deadline:
            raise dist.DistStoreError("some ranks of an earlier start did not come back")
        for word in set(store.multi_get(asking)) - answered:
            store.set(f"start/{word.decode()}", name)
            answered.add(word)
        time.sleep(_LOOK_S)
    return name
