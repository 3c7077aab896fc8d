"""Batches read ahead in a thread, so that a step doesn't wait for its data. A thread, not processes: nothing is copied
between processes, and no shared memory is needed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType

from trainer.data.batches import Batch, Samples, rank_counters

_AHEAD = 2  # steps
_LEAVE_S = 5.0  # at the end, for a read that may be a hanging download
_LOOK_S = 0.2  # between looks whether to go on waiting


def _never() -> bool:
    return False


def _nothing() -> None: ...


@dataclass(frozen=True)
class StepData:
    start: int  # first sample of the step
    tokens: int  # targets that count in the whole step, over all ranks
    batches: tuple[Batch, ...]  # this rank's micro-batches
    waited_s: float = 0.0  # time that the loop lost waiting for this


class Feed:
    """Gives the data of any step; expects the one after it next."""

    def __init__(self, samples: Samples, *, size: int, micro: int, rank: int, world: int) -> None:
        """size: samples of a step, over all ranks; micro: samples of a micro-batch."""
        self._samples, self._size, self._micro, self._rank, self._world = samples, size, micro, rank, world
        self._changed = threading.Condition()
        self._ready: deque[StepData | BaseException] = deque()
        self._expected: int | None = None  # start of the step that is handed out next
        self._next: int | None = None  # start of the step that the thread reads next
        self._jumps = 0  # a step that was read before the latest jump is of no use
        self._stopped = False
        self._thread = threading.Thread(target=self._read_ahead, name="data", daemon=True)
        self._thread.start()

    def __enter__(self) -> Feed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join(timeout=_LEAVE_S)  # a stop doesn't wait for a download to end

    def step(
        self, start: int, *, give_up: Callable[[], bool] = _never, after_reading: Callable[[], None] = _nothing
    ) -> StepData | None:
        """The step that begins at sample `start`; None when it isn't there yet and `give_up` says not to wait for it.

        Raises what reading it raised. after_reading: called when this rank needs nothing but the others.
        """
        began = time.perf_counter()
        with self._changed:
            if start != self._expected:
                self._ready.clear()
                self._expected = self._next = start
                self._jumps += 1
                self._changed.notify_all()
            # A signal only sets a flag, so it is looked at now and then.
            while not self._changed.wait_for(lambda: self._ready, timeout=_LOOK_S):
                if give_up():
                    return None
            item = self._ready.popleft()
            self._expected = None if isinstance(item, BaseException) else start + self._size
            self._changed.notify_all()
        if isinstance(item, BaseException):
            raise item
        after_reading()
        return replace(item, waited_s=time.perf_counter() - began)

    def _read_ahead(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or (self._next is not None and len(self._ready) < _AHEAD))
                start, jumps = self._next, self._jumps
                if self._stopped or start is None:
                    return
            item: StepData | BaseException
            try:
                item = self._read(start)
            except BaseException as error:  # noqa: BLE001 - it's raised in the loop's thread, which waits for this one
                item = error
            with self._changed:
                if jumps == self._jumps:
                    self._ready.append(item)
                    self._next = None if isinstance(item, BaseException) else start + self._size
                    self._changed.notify_all()

    def _read(self, start: int) -> StepData:
        tokens = self._samples.valid_tokens(start, self._size)
        batches = []
        for index in range(self._size // (self._micro * self._world)):
            counters = rank_counters(start, micro=self._micro, index=index, rank=self._rank, world=self._world)
            batches.append(self._samples.read(counters, size=self._micro))
        return StepData(start, tokens, tuple(batches))
