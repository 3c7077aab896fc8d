"""Samples out of token shards: windows by memory map, in an order that needs few shards at a time.

The order of an epoch: its shards are shuffled and taken in groups; the windows of a group are shuffled among
themselves. It is a pure function of seed and counter, equal for local folders and object storage, and a reader that
keeps two groups at hand never waits for a download. Windows don't cross shards. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trainer.data.batches import Batch, Packing, pack
from trainer.data.manifest import Manifest, Shard, Split
from trainer.data.storage import Folder
from trainer.errors import DataError

GROUP = 8  # shards whose windows are shuffled together


class Store(Protocol):
    """Where shards lie as local files."""

    def path(self, shard: Shard) -> Path:
        """The whole shard on this machine; may wait for its download. Raises DataError."""

    def expect(self, shards: Sequence[Shard]) -> None:
        """These will be asked for: fetch them meanwhile, in this order."""

    def close(self) -> None:
        """Nothing will be asked for any more."""


class LocalStore:
    """Shards in a local folder. Sizes were compared with the manifest; bytes are the business of prepare and verify."""

    def __init__(self, folder: Folder, manifest: Manifest) -> None:
        self._root = Path(folder.url)
        for shard in manifest.shards:
            size, expected = folder.size(shard.file), shard.tokens * manifest.item_size
            if size != expected:
                held = "is missing" if size is None else f"has {size} bytes instead of {expected}"
                raise DataError(f"{folder.name(shard.file)} {held}; bring it back, or prepare the dataset again.")

    def path(self, shard: Shard) -> Path:
        return self._root / shard.file

    def expect(self, shards: Sequence[Shard]) -> None:
        """They are here."""

    def close(self) -> None:
        """There is nothing to end."""


@dataclass(frozen=True)
class _Epoch:
    """One epoch's order: shards as shuffled, and where each group's samples end."""

    number: int
    shards: NDArray[np.int64]  # [shards]
    group_ends: NDArray[np.int64]  # [groups], in samples of the epoch


class ShardWindows:
    """Samples of one split. Raises DataError when no shard holds a whole window."""

    def __init__(
        self,
        manifest: Manifest,
        split: Split,
        store: Store,
        *,
        length: int,
        seed: int,
        packing: Packing = "stream",
        vocabulary: int,
    ) -> None:
        """vocabulary: ids at or above it are refused when they are met, naming the shard."""
        self._shards = [shard for shard in manifest.of(split) if shard.tokens > length]
        self._store, self._length, self._seed, self._packing = store, length, seed, packing
        self._separator, self._vocabulary = manifest.separator, vocabulary
        self._dtype = np.dtype(manifest.dtype).newbyteorder("<")
        self._windows = np.array([(shard.tokens - 1) // length for shard in self._shards], dtype=np.int64)
        if not self._shards:
            largest = max((shard.tokens for shard in manifest.of(split)), default=0)
            name = split.replace("_", "-")
            raise DataError(
                f"data: a shard of the {name} part needs at least {length + 1} tokens for one sequence, has {largest}; "
                "lower data.sequence_length, or prepare with more text"
                + (", or a larger --split-share." if split == "held_out" else ".")
            )
        self.count = int(self._windows.sum())
        self._epoch: _Epoch | None = None
        self._order: tuple[tuple[int, int], NDArray[np.int64]] | None = None
        self._open: dict[int, NDArray[Any]] = {}

    # ---- order

    def _epoch_of(self, number: int) -> _Epoch:
        if self._epoch is None or self._epoch.number != number:
            shards = np.random.default_rng([self._seed, number]).permutation(len(self._shards))
            ends = self._windows[shards].cumsum()
            last = [min(first + GROUP, len(shards)) - 1 for first in range(0, len(shards), GROUP)]
            self._epoch = _Epoch(number, shards, ends[last])
        return self._epoch

    def _locate(self, counters: Sequence[int]) -> Iterator[tuple[int, int]]:
        """(shard, window in it) of each counter."""
        for counter in counters:
            number, position = divmod(counter, self.count)
            epoch = self._epoch_of(number)
            group = int(np.searchsorted(epoch.group_ends, position, side="right"))
            start = int(epoch.group_ends[group - 1]) if group else 0
            size = int(epoch.group_ends[group]) - start
            if self._order is None or self._order[0] != (number, group):
                self._order = ((number, group), np.random.default_rng([self._seed, number, group]).permutation(size))
                self._enter(number, group)
            inside = int(self._order[1][position - start])
            members = epoch.shards[group * GROUP : (group + 1) * GROUP]
            ends = self._windows[members].cumsum()
            place = int(np.searchsorted(ends, inside, side="right"))
            yield int(members[place]), inside - (int(ends[place - 1]) if place else 0)

    def _enter(self, number: int, group: int) -> None:
        """Forgets shards of earlier groups, and has this group's and the next one's fetched."""
        epoch = self._epoch_of(number)
        members = [int(shard) for shard in epoch.shards[group * GROUP : (group + 2) * GROUP]]
        if len(members) < 2 * GROUP:  # the next epoch begins soon
            following = np.random.default_rng([self._seed, number + 1]).permutation(len(self._shards))
            members += [int(shard) for shard in following[:GROUP]]
        self._open = {shard: tokens for shard, tokens in self._open.items() if shard in members}
        self._store.expect([self._shards[shard] for shard in dict.fromkeys(members)])

    # ---- content

    def _window(self, shard: int, window: int) -> NDArray[Any]:
        """[length + 1] ids."""
        if shard not in self._open:
            self._open[shard] = np.memmap(self._store.path(self._shards[shard]), dtype=self._dtype, mode="r")
        start = window * self._length
        return self._open[shard][start : start + self._length + 1]

    def valid_tokens(self, start: int, size: int) -> int:
        places = self._locate(range(start, start + size))
        ends = sum(np.count_nonzero(self._window(*place)[:-1] == self._separator) for place in places)
        return size * self._length - int(ends)

    def read(self, counters: list[int], *, size: int) -> Batch:
        places = list(self._locate(counters))
        windows = [self._window(*place) for place in places]
        for (shard, window), tokens in zip(places, windows, strict=True):
            if int(tokens.max()) >= self._vocabulary:
                raise DataError(
                    f"{self._store.path(self._shards[shard])} holds id {int(tokens.max())} near token "
                    f"{window * self._length}, above the vocabulary of {self._vocabulary}; python -m trainer verify "
                    "finds out whether the file is damaged."
                )
        return pack(windows, size=size, length=self._length, separator=self._separator, packing=self._packing)
