"""manifest.json: what a prepared dataset holds. A folder without one is not a dataset.

A dataset is files of raw little-endian token ids, uint16 or uint32 by vocabulary; each document ends with the separator
and lies in one shard. `digest` names the tokens: equal digests, equal training.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from trainer import strict_json
from trainer.data.storage import Folder
from trainer.errors import DataError

FILE = "manifest.json"
VERSION = 1
Split = Literal["training", "held_out"]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Shard(_Entry):
    file: str
    split: Split
    tokens: int  # separators included
    documents: int
    max_id: int
    sha256: str


class Source(_Entry):
    """An input as it was named; `empty` and `skipped` documents are in no shard."""

    name: str
    documents: int
    empty: int
    skipped: int


class Manifest(_Entry):
    format: Literal["trainstack-tokens"] = "trainstack-tokens"
    version: int = VERSION
    vocabulary: int
    dtype: Literal["uint16", "uint32"]
    separator: int
    tokenizer: str
    tokenizer_digest: str
    digest: str
    request: str  # digest of inputs and options: the same request again has nothing to do
    shards: tuple[Shard, ...]
    sources: tuple[Source, ...]

    def of(self, split: Split) -> tuple[Shard, ...]:
        return tuple(shard for shard in self.shards if shard.split == split)

    def tokens(self, split: Split) -> int:
        return sum(shard.tokens for shard in self.of(split))

    @property
    def item_size(self) -> int:
        return np.dtype(self.dtype).itemsize


def dtype_for(vocabulary: int) -> Literal["uint16", "uint32"]:
    return "uint16" if vocabulary <= 2**16 else "uint32"


def data_digest(shards: tuple[Shard, ...], *, separator: int, tokenizer_digest: str) -> str:
    facts = [separator, tokenizer_digest, [[shard.file, shard.split, shard.sha256] for shard in shards]]
    return hashlib.sha256(strict_json.encode(facts).encode()).hexdigest()


def find(folder: Folder) -> Manifest | None:
    """The folder's manifest, or None. Raises DataError when there is one that can't be trusted."""
    content = folder.read(FILE)
    if content is None:
        return None
    where = folder.name(FILE)
    try:
        values = strict_json.decode(content)
        version = values.get("version") if isinstance(values, dict) else None
        if version != VERSION:
            raise DataError(f"{where} has format version {version}, this trainer reads {VERSION}; prepare it again.")
        manifest = Manifest.model_validate(values)
    except (ValueError, ValidationError) as error:
        first = str(error).splitlines()[0]
        raise DataError(f"{where} is not a manifest of token shards ({first}); prepare it again.") from None
    expected = data_digest(manifest.shards, separator=manifest.separator, tokenizer_digest=manifest.tokenizer_digest)
    if manifest.digest != expected:
        raise DataError(f"{where} was changed after it was written: its digest doesn't fit; prepare it again.")
    return manifest


def load(folder: Folder) -> Manifest:
    """The folder's manifest. Raises DataError when there is none."""
    manifest = find(folder)
    if manifest is None:
        raise DataError(
            f"{folder.url} holds no {FILE}, so it is no finished dataset; run python -m trainer prepare … "
            f"--output {folder.url} (again)."
        )
    return manifest


def encode(manifest: Manifest) -> bytes:
    return strict_json.encode(manifest.model_dump(mode="json"), indent=1).encode()
