"""Which windows a step reads: a pure function of the seed and a global sample counter, so resuming costs nothing.

The samples of a step don't depend on the world size: ranks only divide them. Imports no torch.
"""

import numpy as np
from numpy.typing import NDArray

from trainer.data.sources import SEPARATOR

IGNORED = -100  # target that counts neither for the loss nor as a token


class Windows:
    """Fixed-length windows over a token stream; a window is one sample."""

    def __init__(self, tokens: NDArray[np.uint16], *, length: int, seed: int) -> None:
        self._tokens, self._length, self._seed = tokens, length, seed
        self.count = (len(tokens) - 1) // length
        self._order: tuple[int, NDArray[np.int64]] | None = None
        inputs = tokens[: self.count * length].reshape(self.count, length)  # [windows, length]
        self._valid = (inputs != SEPARATOR).sum(axis=1)  # [windows]

    def at(self, counter: int) -> int:
        """The window that the global sample counter names: each epoch is its own permutation."""
        epoch, position = divmod(counter, self.count)
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, np.random.default_rng([self._seed, epoch]).permutation(self.count))
        return int(self._order[1][position])

    def valid_tokens(self, start: int, size: int) -> int:
        """Targets that count among samples start … start + size - 1 (all ranks: known without communication)."""
        return int(sum(self._valid[self.at(counter)] for counter in range(start, start + size)))

    def read(self, counters: list[int], *, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(inputs, targets), each [size, length] int64; rows past the counters are padding with ignored targets.

        What follows a separator is the start of an unrelated document: nothing could predict it, so it is ignored.
        """
        inputs = np.zeros((size, self._length), dtype=np.int64)
        targets = np.full((size, self._length), IGNORED, dtype=np.int64)
        for row, counter in enumerate(counters):
            start = self.at(counter) * self._length
            window = self._tokens[start : start + self._length + 1].astype(np.int64)
            inputs[row] = window[:-1]
            targets[row] = np.where(window[:-1] == SEPARATOR, IGNORED, window[1:])
        return inputs, targets


def rank_counters(start: int, *, micro: int, index: int, rank: int, world: int) -> list[int]:
    """The sample counters of one rank's `index`-th micro-batch in the step that begins at sample `start`."""
    first = start + (index * world + rank) * micro
    return list(range(first, first + micro))
