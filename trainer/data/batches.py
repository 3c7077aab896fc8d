"""Which samples a step reads: a pure function of the seed and a global sample counter, so resuming costs nothing.

The samples of a step don't depend on the world size: ranks only divide them. Imports no torch.
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from trainer.data.sources import SEPARATOR

IGNORED = -100  # target that counts neither for the loss nor as a token

# (inputs, targets), and with packing "documents" also (…, documents): each [size, length] int64.
Batch = tuple[NDArray[np.int64], ...]
Packing = Literal["stream", "documents"]


class Samples(Protocol):
    """Samples in an endless order; a global counter names each."""

    @property
    def count(self) -> int:
        """Samples in one epoch, at least 1."""

    def valid_tokens(self, start: int, size: int) -> int:
        """Targets that count among samples start … start + size - 1 (all ranks: known without communication)."""

    def read(self, counters: list[int], *, size: int) -> Batch:
        """The named samples in `size` rows; rows past the counters are padding with ignored targets."""


class Windows:
    """Fixed-length windows over a token stream in memory; a window is one sample."""

    def __init__(
        self,
        tokens: NDArray[np.uint16],
        *,
        length: int,
        seed: int,
        separator: int = SEPARATOR,
        packing: Packing = "stream",
    ) -> None:
        self._tokens, self._length, self._seed = tokens, length, seed
        self._separator, self._packing = separator, packing
        self.count = (len(tokens) - 1) // length
        self._order: tuple[int, NDArray[np.int64]] | None = None
        inputs = tokens[: self.count * length].reshape(self.count, length)  # [windows, length]
        self._valid = (inputs != separator).sum(axis=1)  # [windows]

    def at(self, counter: int) -> int:
        """The window that the global sample counter names: each epoch is its own permutation."""
        epoch, position = divmod(counter, self.count)
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, np.random.default_rng([self._seed, epoch]).permutation(self.count))
        return int(self._order[1][position])

    def valid_tokens(self, start: int, size: int) -> int:
        return int(sum(self._valid[self.at(counter)] for counter in range(start, start + size)))

    def read(self, counters: list[int], *, size: int) -> Batch:
        starts = [self.at(counter) * self._length for counter in counters]
        windows = [self._tokens[start : start + self._length + 1] for start in starts]
        return pack(windows, size=size, length=self._length, separator=self._separator, packing=self._packing)


def pack(
    windows: Sequence[NDArray[Any]], *, size: int, length: int, separator: int, packing: Packing
) -> tuple[NDArray[np.int64], ...]:
    """Windows of length + 1 tokens as a batch of `size` rows.

    What follows a separator is the start of an unrelated document: nothing could predict it, so it is ignored.
    documents: the number of the document within its row, from 0; a separator belongs to the document that it ends.
    """
    inputs = np.zeros((size, length), dtype=np.int64)
    targets = np.full((size, length), IGNORED, dtype=np.int64)
    for row, window in enumerate(windows):
        inputs[row], targets[row] = window[:-1], window[1:]
    targets[: len(windows)][inputs[: len(windows)] == separator] = IGNORED
    if packing == "stream":
        return inputs, targets
    ends = inputs == separator
    return inputs, targets, ends.cumsum(axis=1) - ends


def rank_counters(start: int, *, micro: int, index: int, rank: int, world: int) -> list[int]:
    """The sample counters of one rank's `index`-th micro-batch in the step that begins at sample `start`."""
    first = start + (index * world + rank) * micro
    return list(range(first, first + micro))
