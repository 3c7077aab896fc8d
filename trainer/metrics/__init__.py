"""Where numbers go. Each sink runs in its own thread, so a slow one costs nothing; a failing one warns once and is off:
numbers are not worth a training run.
"""

import math
import queue
import sys
import threading
import time
from typing import Any

from trainer.config import Recipe
from trainer.metrics.redaction import redact
from trainer.metrics.sinks import Record, Sink, make_sink

_QUEUED = 10_000  # records that a slow sink may be behind


class Metrics:
    """Rank 0's sinks; nothing on the other ranks."""

    def __init__(self, recipe: Recipe, *, active: bool, close_s: float = 15.0) -> None:
        """close_s: what all sinks together get, at the end, to write what is left."""
        self._close_s = close_s
        names = dict.fromkeys(recipe.metrics.sinks) if active else {}
        self._sinks = [_Background(name, make_sink(name, recipe)) for name in names]

    def event(self, event: str, step: int, **values: Any) -> None:
        """Fields as in trainer.metrics.schema. Numbers that are not finite become null, because JSON has none."""
        record = {"event": event, "step": step, "time": time.time()}
        record |= {key: _plain(value) for key, value in values.items()}
        for sink in self._sinks:
            sink.put(record)

    def close(self) -> None:
        """Waits for what is left to be written, but not for ever."""
        for sink in self._sinks:
            sink.put(None)
        deadline = time.monotonic() + self._close_s
        for sink in self._sinks:
            sink.join(max(0.0, deadline - time.monotonic()))


class _Background:
    """A sink behind a queue."""

    def __init__(self, name: str, sink: Sink) -> None:
        self._name, self._sink = name, sink
        self._queue: queue.Queue[Record | None] = queue.Queue(_QUEUED)
        self._off = self._late = False
        self._thread = threading.Thread(target=self._run, name=f"sink {name}", daemon=True)
        self._thread.start()

    def put(self, record: Record | None) -> None:
        if self._off:
            return
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            if not self._late:
                self._late = True
                self._warn(f"is more than {_QUEUED} records behind and misses some")

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._warn("didn't write everything in time at the end")

    def _run(self) -> None:
        try:
            self._sink.open()
            while (record := self._queue.get()) is not None:
                self._sink.write(record)
            self._sink.close()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - other people's libraries raise anything
            self._off = True
            self._warn(f"is off from here on: {type(error).__name__}: {error}")

    def _warn(self, text: str) -> None:
        print(f"warning: metrics sink {self._name} {redact(text)}", file=sys.stderr, flush=True)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
