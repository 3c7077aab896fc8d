"""Wishes to stop. A rank only notes its wish; all ranks stop together, where the loop asks them all."""

import math
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def taken_over() -> list[signal.Signals]:
    """The signals that ask to stop; without those that this process was started to ignore, such as by nohup."""
    if threading.current_thread() is not threading.main_thread():  # Python allows no other one to set handlers
        return []
    return [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]


class StopFlag:
    """This rank's wish to stop: why, and since when. The first reason stays, so a second signal changes nothing.

    As a context manager it takes SIGTERM, SIGINT and SIGHUP (a closed terminal) over. The handler sets the flag and
    does nothing else, because it may run at any point: also in the middle of a save.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.since = 0.0
        self._before: dict[signal.Signals, Any] = {}

    @property
    def raised(self) -> bool:
        return self.reason is not None

    def set(self, reason: str) -> None:
        if self.reason is None:
            self.since = time.monotonic()
            self.reason = reason

    def served(self) -> None:
        """The checkpoint is complete: the grace has no end any more."""
        self.since = math.inf

    def __enter__(self) -> "StopFlag":
        self._before = {number: signal.signal(number, self._on_signal) for number in taken_over()}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.set(signal.Signals(number).name)
