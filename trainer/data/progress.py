"""How far a prepare is: one line that renews itself on a terminal, a plain line now and then otherwise."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TextIO

_EVERY_S = 10.0


class Progress:
    """Counts bytes of input; sizes: bytes of each unit."""

    def __init__(self, sizes: Sequence[int], stream: TextIO) -> None:
        self._sizes, self._stream, self._terminal = sizes, stream, stream.isatty()
        self._began = self._said = time.monotonic()
        self._units = self._found_bytes = self._bytes = self._tokens = 0

    def found(self, index: int) -> None:
        """A unit that an earlier run finished."""
        self._units += 1
        self._found_bytes += self._sizes[index]

    def done(self, index: int, tokens: int) -> None:
        self._units += 1
        self._bytes += self._sizes[index]
        self._tokens += tokens
        now = time.monotonic()
        if self._terminal or now - self._said >= _EVERY_S or self._units == len(self._sizes):
            self._said = now
            self._say(self._line(now))

    def close(self) -> None:
        if self._terminal:
            self._stream.write("\n")

    def _line(self, now: float) -> str:
        seconds = max(now - self._began, 1e-9)
        left = (sum(self._sizes) - self._found_bytes - self._bytes) * seconds / max(1, self._bytes)
        again = f" ({_size(self._found_bytes)} from before)" if self._found_bytes else ""
        return (
            f"prepare: {self._units}/{len(self._sizes)} parts, "
            f"{_size(self._found_bytes + self._bytes)} of {_size(sum(self._sizes))}{again}, "
            f"{self._tokens / seconds:,.0f} tokens/s, ETA {left:.0f} s"
        )

    def _say(self, text: str) -> None:
        self._stream.write(f"\r{text}\x1b[K" if self._terminal else f"{text}\n")
        self._stream.flush()


def _size(count: int) -> str:
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
