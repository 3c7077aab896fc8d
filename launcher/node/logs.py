"""One log a node: whole lines of every rank, each with its source, in an append-only file that is streamed by offset.

Each source writes straight to its own file; the merger copies finished lines into `output.log`. Before it appends it
notes what it is about to copy, so that after a crash the copying goes on where it was: no line lost, none twice.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
from collections.abc import Callable
from pathlib import Path

from launcher.node.layout import RunFolder, read_json, write_json

MAX_LINE_BYTES = 4 * 1024 * 1024
"""A longer line is cut into pieces of this size."""
_READ_BYTES = 8 * 1024 * 1024
_LINE_END = re.compile(rb"\r\n|\n|\r")
"""A carriage return ends a line as well: each state of a progress bar becomes a line."""


class Merger:
    """Copies what is new in the sources into the log. One at a time a run: its owner holds the node's claim."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._offsets: dict[str, int] = {}
        self._size = 0
        self._note = read_json(folder.merged)

    def step(self, *, flush: bool = False) -> None:
        """Copies once. `flush`: the sources have ended, so an unfinished last line is a line too. Raises OSError."""
        self._repeat_noted()
        more = True
        while more:
            text, reached, more = self._collect(self._offsets, {}, flush=flush)
            if text:
                note = {"at": self._size, "from": self._offsets, "to": reached}
                write_json(self._folder.merged, note, durable=False)
                self._note = note
                self._append(self._size, text, reached)

    def _repeat_noted(self) -> None:
        """Writes a piece that was noted but not finished again at its place: the same bytes, as some may be read."""
        if self._note is not None:
            # Each source's piece ended at a line's end.
            text, reached, _ = self._collect(self._note["from"], self._note["to"], flush=True)
            self._append(self._note["at"], text, reached)

    def _append(self, at: int, text: bytes, reached: dict[str, int]) -> None:
        descriptor = os.open(self._folder.log, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            done = 0
            while done < len(text):
                done += os.pwrite(descriptor, text[done:], at + done)
        finally:
            os.close(descriptor)
        self._note, self._offsets, self._size = None, reached, at + len(text)

    def _collect(
        self, start: dict[str, int], limits: dict[str, int], *, flush: bool
    ) -> tuple[bytes, dict[str, int], bool]:
        """(prefixed lines, new offsets, whether a source holds more than was read). `limits`: where each ends."""
        lines: list[bytes] = []
        reached = dict(start)
        more = False
        for path in sorted((self._folder.path / "sources").glob("*.log"), key=_order):
            name = path.stem
            if limits and name not in limits:
                continue
            begin = start.get(name, 0)
            size = min(path.stat().st_size, limits.get(name, sys.maxsize))
            if size <= begin:
                continue
            with path.open("rb") as file:
                file.seek(begin)
                data = file.read(min(_READ_BYTES, size - begin))
            more = more or begin + len(data) < size
            found, used = split_lines(data, flush=flush and begin + len(data) == size)
            prefix = b"[" + name.replace("-", " ").encode() + b"] "
            lines.extend(prefix + line + b"\n" for line in found)
            reached[name] = begin + used
        return b"".join(lines), reached, more


def split_lines(data: bytes, *, flush: bool) -> tuple[list[bytes], int]:
    """(finished lines without their ends, bytes used). An unfinished line waits, unless `flush` or too long."""
    lines = []
    used = 0
    for end in _LINE_END.finditer(data):
        if end.group() == b"\r" and end.end() == len(data) and not flush:
            break  # its "\n" may be still to come
        lines.append(data[used : end.start()])
        used = end.end()
    rest = data[used:]
    while len(rest) > MAX_LINE_BYTES or (flush and rest):
        lines.append(rest[:MAX_LINE_BYTES])
        used += len(lines[-1])
        rest = rest[MAX_LINE_BYTES:]
    return lines, used


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a file, bytes that aren't UTF-8 replaced; empty when there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 64 * 1024))
            data = file.read()
    except OSError:
        return []
    return [line.decode("utf-8", "replace")[:2000] for line in split_lines(data, flush=True)[0] if line.strip()][
        -count:
    ]


def tail(folder: RunFolder, offset: int, *, output: int, over: Callable[[], bool]) -> None:
    """Writes the log from byte `offset` on to the descriptor `output` until `over()` is true and all is written.

    Ends at once, too, when nobody reads any more: then nothing is left running on the node.
    """
    poll = select.poll()
    poll.register(output, 0)  # errors and hang-ups only
    while True:
        last_round = over()
        with contextlib.suppress(FileNotFoundError), folder.log.open("rb") as file:
            file.seek(offset)
            while data := file.read(256 * 1024):
                _write_all(output, data)
                offset += len(data)
        if last_round or poll.poll(200):
            return


def _write_all(output: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(output, view) :]


def _order(path: Path) -> tuple[int, int]:
    name, _, number = path.stem.partition("-")
    return ({"supervisor": 0, "torchrun": 1}.get(name, 2), int(number) if number.isdigit() else 0)
