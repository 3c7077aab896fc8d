"""One unit of work: its documents become shards, and a record says that they are complete."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer import strict_json
from trainer.data.documents import Bad, read
from trainer.data.inputs import Unit
from trainer.data.manifest import Shard, Source, Split, dtype_for
from trainer.data.storage import Folder
from trainer.data.tokenizer import Tokenizer
from trainer.errors import DataError

PROGRESS = ".progress"
_SHOWN = 5  # bad lines named per unit
_BATCH = 64  # documents encoded at a time


@dataclass(frozen=True)
class Options:
    """What decides a unit's shards beside its inputs."""

    tokenizer: Tokenizer
    text_key: str
    split_share: float
    shard_tokens: int
    skip_bad_lines: bool
    output: str

    @property
    def key(self) -> list[object]:
        tokenizer = self.tokenizer
        return [tokenizer.digest, tokenizer.separator, self.text_key, self.split_share, self.shard_tokens]


@dataclass(frozen=True)
class Result:
    """What became of a unit; shards is empty when bad lines were met and not to be skipped."""

    fingerprint: str
    shards: tuple[Shard, ...]
    sources: tuple[Source, ...]
    problems: tuple[str, ...]  # the first few
    bad: int

    def encode(self) -> bytes:
        values = {
            **asdict(self),
            "shards": [shard.model_dump() for shard in self.shards],
            "sources": [source.model_dump() for source in self.sources],
        }
        return strict_json.encode(values).encode()


def record_name(index: int) -> str:
    return f"{PROGRESS}/unit-{index:06d}.json"


def finished(folder: Folder, unit: Unit, options: Options) -> Result | None:
    """The unit's result when an earlier run finished it, from the same inputs and with the same options."""
    content = folder.read(record_name(unit.index))
    if content is None:
        return None
    try:
        values = strict_json.decode(content)
        shards = tuple(Shard.model_validate(item) for item in values["shards"])
        sources = tuple(Source.model_validate(item) for item in values["sources"])
        result = Result(values["fingerprint"], shards, sources, tuple(values["problems"]), int(values["bad"]))
    except (ValueError, KeyError, TypeError):
        return None  # from another version: the unit is done again
    if result.fingerprint != unit.fingerprint(options.key) or (result.bad and not options.skip_bad_lines):
        return None
    size = np.dtype(dtype_for(options.tokenizer.vocabulary)).itemsize
    whole = all(folder.size(shard.file) == shard.tokens * size for shard in shards)
    return result if whole else None


def write_unit(unit: Unit, options: Options, dataset: Any) -> Result:
    """Tokenizes a unit into `output`. When bad lines aren't to be skipped, the rest is still checked, not written."""
    folder = Folder(options.output)
    problems: list[str] = []
    bad = 0
    sources = []
    with tempfile.TemporaryDirectory(prefix=f"unit-{unit.index:06d}-", dir=_scratch(folder)) as scratch:
        splits: tuple[Split, Split] = ("training", "held_out")
        writers = {split: _Writer(folder, Path(scratch), unit.index, split, options) for split in splits}
        for piece in unit.pieces:
            documents = empty = skipped = 0
            stream = read(piece, dataset, text_key=options.text_key)
            while batch := list(islice(stream, _BATCH)):
                texts = [item for item in batch if isinstance(item, str)]
                for item in batch:
                    if isinstance(item, Bad):
                        skipped += 1
                        if len(problems) < _SHOWN:
                            problems.append(item.sentence())
                if bad + skipped and not options.skip_bad_lines:
                    continue
                for text, ids in zip(texts, options.tokenizer.encode(texts), strict=True):
                    if not len(ids):
                        empty += 1
                        continue
                    writers[_split(text, options.split_share)].add(ids, source=piece.name)
                    documents += 1
            bad += skipped
            sources.append(Source(name=piece.name, documents=documents, empty=empty, skipped=skipped))
        refused = bad > 0 and not options.skip_bad_lines
        shards = () if refused else tuple(shard for writer in writers.values() for shard in writer.close())
    result = Result(unit.fingerprint(options.key), shards, tuple(sources), tuple(problems), bad)
    if not refused:
        folder.write(record_name(unit.index), result.encode())
    return result


def _scratch(folder: Folder) -> Path | None:
    """Beside the shards when they are local, because a rename can't cross disks."""
    return None if folder.remote else Path(folder.url, PROGRESS)


def _split(text: str, share: float) -> Split:
    """By the document's content, so that equal documents are on the same side."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return "held_out" if number < share * 2**64 else "training"


class _Writer:
    """The shards of one split of a unit; a shard is closed at the first document end past `shard_tokens`."""

    def __init__(self, folder: Folder, scratch: Path, unit: int, split: Split, options: Options) -> None:
        self._folder, self._scratch, self._unit, self._split = folder, scratch, unit, split
        self._tokenizer, self._limit = options.tokenizer, options.shard_tokens
        self._dtype = np.dtype(dtype_for(options.tokenizer.vocabulary)).newbyteorder("<")
        self._shards: list[Shard] = []
        self._documents: list[NDArray[Any]] = []
        self._tokens = 0

    def add(self, ids: NDArray[Any], *, source: str) -> None:
        top, separator = int(ids.max()), self._tokenizer.separator
        if top >= self._tokenizer.vocabulary or bool((ids == separator).any()):
            raise DataError(
                f"{source}: tokenizer {self._tokenizer.name} gave an id inside a document that is its separator or "
                "above its vocabulary; use its own tokenizer.json, or another --separator."
            )
        document = np.empty(len(ids) + 1, dtype=self._dtype)
        document[:-1], document[-1] = ids, separator
        self._documents.append(document)
        self._tokens += len(ids) + 1
        if self._tokens >= self._limit:
            self._finish()

    def close(self) -> list[Shard]:
        if self._documents:
            self._finish()
        return self._shards

    def _finish(self) -> None:
        file = f"{self._split}-{self._unit:06d}-{len(self._shards):04d}.bin"
        tokens = np.concatenate(self._documents)
        content = tokens.tobytes()
        partial = self._scratch / file
        partial.write_bytes(content)
        self._folder.put(file, partial)
        self._shards.append(
            Shard(
                file=file,
                split=self._split,
                tokens=len(tokens),
                documents=len(self._documents),
                max_id=int(tokens.max()),
                sha256=hashlib.sha256(content).hexdigest(),
            )
        )
        self._documents, self._tokens = [], 0


def merge_sources(results: list[Result]) -> Iterator[Source]:
    """One entry an input, in order: a large file is spread over several units."""
    merged: dict[str, list[int]] = {}
    for result in results:
        for source in result.sources:
            counts = merged.setdefault(source.name, [0, 0, 0])
            for index, value in enumerate((source.documents, source.empty, source.skipped)):
                counts[index] += value
    for name, (documents, empty, skipped) in merged.items():
        yield Source(name=name, documents=documents, empty=empty, skipped=skipped)
