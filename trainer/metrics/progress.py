"""What people read: on a terminal one line that changes with each step, elsewhere a line now and then."""

import sys
from typing import TextIO


class Progress:
    """Rank 0's lines; nothing on the other ranks."""

    def __init__(self, *, active: bool, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._active, self._terminal = active, self._stream.isatty()
        self._shown = 0  # characters of the line that is to be written over

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._active:
            self._write(text, end="\n")

    def step(self, text: str, *, keep: bool) -> None:
        """A line that stays if `keep`; otherwise only a terminal shows it, until the next line."""
        if self._active and (keep or self._terminal):
            self._write(text, end="\n" if keep else "")

    def _write(self, text: str, *, end: str) -> None:
        before = "\r" + " " * self._shown + "\r" if self._shown else ""
        print(before + text, end=end, file=self._stream, flush=True)
        self._shown = 0 if end else len(text)


def progress_line(step: int, steps: int, **numbers: float) -> str:
    """For example: step 120/300  loss 2.3456  lr 3.0e-04  norm 0.91  12,345 tokens/s  ETA 2 min 5 s"""
    used = f"MFU {numbers['mfu']:.1%}  " if "mfu" in numbers else ""
    return (
        f"step {step}/{steps}  loss {numbers['loss']:.4f}  lr {numbers['learning_rate']:.1e}  "
        f"norm {numbers['gradient_norm']:.2f}  {numbers['tokens_per_s']:,.0f} tokens/s  "
        f"{used}ETA {duration(numbers['eta'])}"
    )


def duration(seconds: float) -> str:
    """ "12 s", "2 min 5 s", "3 h 20 min", "2 d 4 h"."""
    whole = max(0, round(seconds))
    for large, name, small, rest in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= large:
            return f"{whole // large} {name} {whole % large // small} {rest}"
    return f"{whole} s"
