"""Documents out of inputs. Whatever can't be one is named with its place, and never passed over in silence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from trainer import strict_json
from trainer.data.inputs import Piece
from trainer.data.storage import explained, open_filesystem
from trainer.errors import DataError


class Wrong(str):
    """What is wrong with a line or a row, as text that can stand behind its place."""


@dataclass(frozen=True)
class Bad:
    """A line, row or file that is no document."""

    piece: Piece
    reason: Wrong
    row: int = 0  # of a table, or line of a file, from 0 and within the piece
    offset: int = 0  # of a line, in bytes

    def sentence(self) -> str:
        """Place and reason. Counts the lines before it, so ask it of few."""
        if self.piece.kind == "text":
            return f"{self.piece.name}: {self.reason}"
        if self.piece.kind == "jsonl":
            line = self.row + 1 if self.piece.compression else _lines_before(self.piece, self.offset) + 1
            return f"{self.piece.name}:{line}: {self.reason}"
        return f"{self.piece.name}: row {self.row}: {self.reason}"


def read(piece: Piece, dataset: Any, *, text_key: str) -> Iterator[str | Bad]:
    """The piece's documents in order. Raises DataError when the input can't be read at all."""
    if piece.kind == "text":
        yield _whole_text(piece)
    elif piece.kind == "jsonl":
        for row, offset, value in json_objects(piece):
            text = value if isinstance(value, Wrong) else text_of(value, text_key)
            yield Bad(piece, text, row, offset) if isinstance(text, Wrong) else text
    else:
        rows = _parquet_rows(piece, text_key) if piece.kind == "parquet" else _dataset_rows(piece, dataset, text_key)
        for row, cell in rows:
            yield cell if isinstance(cell, str) else Bad(piece, _not_text(text_key, cell), row)


def _whole_text(piece: Piece) -> str | Bad:
    with _opened(piece) as stream:
        content = stream.read()
    try:
        return str(content, "utf-8-sig")
    except UnicodeDecodeError as error:
        return Bad(piece, _not_utf8(content, error))


def _not_utf8(content: bytes, error: UnicodeDecodeError, *, before: int = 0) -> Wrong:
    skipped = 3 if content.startswith(b"\xef\xbb\xbf") else 0  # the codec counts from behind a byte order mark
    return Wrong(f"byte {before + skipped + error.start} is no UTF-8 (0x{error.object[error.start]:02x})")


# ---- JSON lines


def json_objects(piece: Piece) -> Iterator[tuple[int, int, dict[str, Any] | Wrong]]:
    """(row, byte offset, object or what is wrong) of each line that begins in the piece. Only \\n ends a line."""
    with _opened(piece) as stream:
        offset = 0
        if piece.first:  # a line that began before our first byte belongs to the piece before
            stream.seek(piece.first - 1)
            offset = piece.first - 1 + len(stream.readline())
        row = 0
        while piece.compression or offset < piece.last:
            line = stream.readline()
            if not line:
                return
            yield row, offset, _parse(line, offset)
            row, offset = row + 1, offset + len(line)


def _parse(line: bytes, offset: int) -> dict[str, Any] | Wrong:
    if not line.strip():
        return Wrong("the line is blank")
    try:
        text = str(line, "utf-8-sig" if offset == 0 else "utf-8")
    except UnicodeDecodeError as error:
        return _not_utf8(line, error, before=offset)
    try:
        value = json.loads(text, object_pairs_hook=strict_json.unrepeated)
    except strict_json.RepeatedKey as error:
        return Wrong(f"{error} in one object")
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            return Wrong("there is more than one JSON value on the line")
        if text.strip() in ("[", "{"):
            return Wrong("one line must hold one whole object; this file looks like a JSON array or indented JSON")
        if not text.endswith("\n"):
            return Wrong(f"the file ends within the line; is it whole? ({_at_column(error)})")
        return Wrong(f"not valid JSON ({_at_column(error)})")
    except RecursionError:
        return Wrong("JSON nested too deeply")
    except ValueError:  # Python turns no more than 4300 digits into a whole number
        return Wrong("JSON with a number of too many digits")
    if isinstance(value, list):
        return Wrong("one line must hold one object; this is a JSON array")
    return value if isinstance(value, dict) else Wrong(f"one line must hold one object; this is {_kind(value)}")


def _at_column(error: json.JSONDecodeError) -> str:
    return f"{error.msg.removesuffix(' at')} at column {error.colno}"  # some of the messages end with "at"


def text_of(value: dict[str, Any], key: str) -> str | Wrong:
    """The text under `key`."""
    if key not in value:
        known = ", ".join(sorted(value)[:8]) or "none"
        return Wrong(f"there is no key {key!r} (keys here: {known})")
    text = value[key]
    if not isinstance(text, str):
        return _not_text(key, text)
    try:
        text.encode()
    except UnicodeEncodeError:
        return Wrong(f"{key!r} holds half of a surrogate pair (\\ud800 … \\udfff), which is no character")
    return text


def _not_text(key: str, value: object) -> Wrong:
    return Wrong(f"{key!r} is {_kind(value)}, not text")


def _kind(value: object) -> str:
    names = {type(None): "null", bool: "a truth value", int: "a number", float: "a number", list: "a list"}
    return names.get(type(value), "an object")


def _lines_before(piece: Piece, offset: int) -> int:
    lines, left = 0, offset
    with _opened(piece) as stream:
        while left > 0 and (block := stream.read(min(left, 2**22))):
            lines, left = lines + block.count(b"\n"), left - len(block)
    return lines


# ---- tables


def _parquet_rows(piece: Piece, text_key: str) -> Iterator[tuple[int, object]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _opened(piece) as stream:
        try:
            file = pq.ParquetFile(stream)
            groups = range(piece.first, piece.last)
            row = sum(file.metadata.row_group(index).num_rows for index in range(piece.first))
            for batch in file.iter_batches(batch_size=1000, row_groups=list(groups), columns=[text_key]):
                for value in batch.column(0):
                    yield row, value.as_py()
                    row += 1
        except pa.ArrowInvalid as error:
            raise DataError(f"{piece.name} is a damaged Parquet file: {' '.join(str(error).split())}.") from None
        except UnicodeDecodeError as error:
            raise DataError(f"{piece.name}: row {row}: {text_key!r} is no UTF-8 text ({error.reason}).") from None


def _dataset_rows(piece: Piece, dataset: Any, text_key: str) -> Iterator[tuple[int, object]]:
    for start in range(piece.first, piece.last, 1000):
        yield from enumerate(dataset[start : min(piece.last, start + 1000)][text_key], start)


@contextmanager
def _opened(piece: Piece) -> Iterator[Any]:
    """The piece's file as a stream of bytes, decompressed."""
    filesystem, path = open_filesystem(piece.source)
    with explained(piece.source, action="read"), filesystem.open(path, "rb") as stream:
        if piece.compression is None:
            yield stream
            return
        import pyarrow as pa

        raw = pa.PythonFile(stream, mode="r")
        with pa.BufferedInputStream(pa.CompressedInputStream(raw, piece.compression), 2**20) as whole:
            yield _Lines(whole)


class _Lines:
    """readline over a decompressed stream, which pyarrow doesn't offer."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._rest = stream, b""

    def read(self, size: int = -1) -> bytes:
        taken, self._rest = self._rest, b""
        return taken + bytes(self._stream.read(None if size < 0 else size))

    def readline(self) -> bytes:
        parts = []
        while True:
            line, newline, self._rest = self._rest.partition(b"\n")
            parts.append(line + newline)
            if newline:
                break
            self._rest = bytes(self._stream.read(2**20))
            if not self._rest:
                break
        return b"".join(parts)
