"""Where numbers go: metrics.jsonl for programs, TensorBoard for people, one progress line for the log."""

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO


class Metrics:
    """Rank 0's sinks. A sink that fails warns once and is left out: numbers are not worth a training run."""

    def __init__(self, output: Path, *, active: bool) -> None:
        self._active, self._output = active, output
        self._file: TextIO | None = None
        self._board: Any = None
        if active:
            self._guard("metrics.jsonl", self._open_file)
            self._guard("tensorboard", self._open_board)

    def event(self, event: str, step: int, **values: Any) -> None:
        """One JSON object a line; numbers that are not finite become null, because JSON has none."""
        if not self._active:
            return
        line = {"event": event, "step": step, "time": time.time(), **values}
        text = json.dumps({key: _plain(value) for key, value in line.items()})
        self._guard("metrics.jsonl", lambda: self._write(text))
        self._guard("tensorboard", lambda: self._scalars(event, step, values))

    def close(self) -> None:
        if self._file is not None:
            self._guard("metrics.jsonl", self._file.close)
        if self._board is not None:
            self._guard("tensorboard", self._board.close)

    def _open_file(self) -> None:
        self._output.mkdir(parents=True, exist_ok=True)
        path = self._output / "metrics.jsonl"
        broken = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
        self._file = path.open("a", encoding="utf-8")
        if broken:  # a run that was killed while writing: its half line must not swallow ours
            self._file.write("\n")

    def _open_board(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._board = SummaryWriter(str(self._output / "tensorboard"))

    def _write(self, text: str) -> None:
        if self._file is not None:
            self._file.write(text + "\n")
            self._file.flush()

    def _scalars(self, event: str, step: int, values: dict[str, Any]) -> None:
        if self._board is None or event not in ("step", "eval"):
            return
        for key, value in values.items():
            if isinstance(value, (int, float)):
                self._board.add_scalar(f"{event}/{key}", value, step)

    def _guard(self, sink: str, action: Callable[[], None]) -> None:
        try:
            action()
        except (OSError, ImportError, ValueError) as error:
            if sink == "tensorboard":
                self._board = None
            else:
                self._file = None
            print(f"warning: {sink} is off from here on: {error}", file=sys.stderr, flush=True)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def progress_line(step: int, steps: int, **numbers: float) -> str:
    """For example: step 120/300  loss 2.3456  lr 3.0e-04  norm 0.91  12,345 tokens/s  ETA 12 s"""
    return (
        f"step {step}/{steps}  loss {numbers['loss']:.4f}  lr {numbers['learning_rate']:.1e}  "
        f"norm {numbers['gradient_norm']:.2f}  {numbers['tokens_per_s']:,.0f} tokens/s  ETA {numbers['eta']:.0f} s"
    )
