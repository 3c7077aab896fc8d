"""What `prepare` reads, cut into units of work that don't depend on the number of workers."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

from trainer.data.storage import explained, is_remote, local_path, open_filesystem, protocol, readable
from trainer.errors import ConfigError, DataError

Kind = Literal["jsonl", "text", "parquet", "dataset"]
_COMPRESSION = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True)
class Piece:
    """A part of one input: bytes of a file, row groups of a Parquet file, or rows of a dataset, first … last - 1."""

    kind: Kind
    source: str  # path or URL as it opens; for a dataset its name
    size: int  # bytes, about
    stamp: str  # differs when the input has changed
    first: int = 0
    last: int = 0
    compression: str | None = None

    @property
    def name(self) -> str:
        return self.source if is_remote(self.source) else readable(self.source)


@dataclass(frozen=True)
class Unit:
    """What one worker does at a time. Its shards are named by `index`."""

    index: int
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)

    def fingerprint(self, options: Sequence[object]) -> str:
        """Equal when the unit would give the same shards again."""
        facts = [(p.kind, p.name, p.stamp, p.first, p.last) for p in self.pieces]
        return hashlib.sha256(repr((facts, list(options))).encode("utf-8", "backslashreplace")).hexdigest()


def plan(inputs: Sequence[str], dataset: Any, *, dataset_name: str, text_key: str, unit_bytes: int) -> list[Unit]:
    """Units in input order; files of a folder are in order of their paths. Raises ConfigError or DataError.

    dataset: an open Hugging Face dataset with the column `text_key` alone, or None.
    """
    units: list[Unit] = []
    pieces: list[Piece] = []
    for piece in _pieces(inputs, dataset, dataset_name=dataset_name, text_key=text_key, unit_bytes=unit_bytes):
        pieces.append(piece)
        if sum(part.size for part in pieces) >= unit_bytes:
            units.append(Unit(len(units), tuple(pieces)))
            pieces = []
    if pieces:
        units.append(Unit(len(units), tuple(pieces)))
    if not units:
        raise ConfigError("prepare: the inputs hold no files; name JSONL, Parquet or text files, or folders of them.")
    return units


def _pieces(
    inputs: Sequence[str], dataset: Any, *, dataset_name: str, text_key: str, unit_bytes: int
) -> Iterator[Piece]:
    for item in inputs:
        for source, info in _files(item):
            yield from _cut(source, info, text_key=text_key, unit_bytes=unit_bytes)
    if dataset is not None:
        size, rows = int(dataset.data.nbytes), len(dataset)
        step = max(1, rows * unit_bytes // max(1, size))
        for first in range(0, rows, step):
            last = min(rows, first + step)
            stamp = str(dataset._fingerprint)  # the library's own name for the content; it has no public one
            yield Piece("dataset", dataset_name, size * (last - first) // rows, stamp, first, last)


def _files(item: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(path or URL, fsspec info) of one command line input. Hidden files in folders are left out."""
    filesystem, path = open_filesystem(item)
    prefix = f"{protocol(item)}://" if is_remote(item) else ""
    with explained(item, action="read"):
        info = filesystem.info(path)
        if info["type"] != "directory":
            yield prefix + str(info["name"]), info
            return
        found = filesystem.find(path, detail=True)
    for name in sorted(found):
        inside = posixpath.relpath(name, path)
        if not any(part.startswith(".") for part in inside.split("/")):
            yield prefix + name, found[name]


def _cut(source: str, info: dict[str, Any], *, text_key: str, unit_bytes: int) -> Iterator[Piece]:
    size, stamp = int(info["size"]), _stamp(info)
    plain = PurePosixPath(source)
    compression = _COMPRESSION.get(plain.suffix.lower())
    kind_suffix = (PurePosixPath(plain.stem) if compression else plain).suffix.lower()
    if kind_suffix == ".parquet" and compression is None:
        yield from _row_groups(source, stamp, text_key=text_key, unit_bytes=unit_bytes)
    elif kind_suffix in (".jsonl", ".ndjson"):
        if compression or size <= unit_bytes:
            yield Piece("jsonl", source, size, stamp, 0, size, compression)
        else:
            for first in range(0, size, unit_bytes):
                last = min(size, first + unit_bytes)
                yield Piece("jsonl", source, last - first, stamp, first, last)
    elif kind_suffix == ".json":
        raise DataError(f"{readable(source)} is JSON; write one object a line and name it .jsonl.")
    else:
        yield Piece("text", source, size, stamp, 0, size, compression)


def _stamp(info: dict[str, Any]) -> str:
    """Size and what the storage says of the version: entity tag in object storage, time of change on a disk."""
    changed = info.get("ETag") or info.get("etag") or info.get("md5Hash") or info.get("mtime")
    return f"{info['size']}:{changed}"


def _row_groups(source: str, stamp: str, *, text_key: str, unit_bytes: int) -> Iterator[Piece]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    filesystem, path = open_filesystem(source)
    with explained(source, action="read"), filesystem.open(path, "rb") as stream:
        try:
            file = pq.ParquetFile(stream)
        except pa.ArrowInvalid as error:
            raise DataError(f"{readable(source)} is not a Parquet file: {error}.") from None
        names = file.schema_arrow.names
        if text_key not in names:
            raise DataError(
                f"{readable(source)} has no column {text_key!r}; name one of {', '.join(names)}: --text-key."
            )
        groups = [file.metadata.row_group(index).total_byte_size for index in range(file.metadata.num_row_groups)]
    first, size = 0, 0
    for index, group in enumerate(groups):
        size += group
        if size >= unit_bytes or index == len(groups) - 1:
            yield Piece("parquet", source, size, stamp, first, index + 1)
            first, size = index + 1, 0


def open_dataset(name: str, *, split: str, text_key: str) -> Any:
    """A Hugging Face dataset, from a folder of save_to_disk or from the hub, with its text column alone."""
    import datasets

    try:
        folder = local_path(name)
        loaded: Any = datasets.load_from_disk(str(folder)) if folder.exists() else _from_hub(name, split)
    except (OSError, ValueError) as error:  # the library's own errors derive from these
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"--dataset {readable(name)}: cannot be loaded ({reason}).") from None
    if isinstance(loaded, datasets.DatasetDict):
        if split not in loaded:
            raise ConfigError(
                f"--dataset {readable(name)} has no split {split!r}; choose --split {' or '.join(loaded)}."
            )
        loaded = loaded[split]
    if text_key not in loaded.column_names:
        raise DataError(
            f"--dataset {readable(name)} has no column {text_key!r}; name one of {', '.join(loaded.column_names)}: "
            "--text-key."
        )
    return loaded.select_columns([text_key])


def _from_hub(name: str, split: str) -> Any:
    import datasets

    return datasets.load_dataset(name, split=split)
