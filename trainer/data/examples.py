"""Fine-tuning: prompt and response pairs out of JSON lines, one example a row, padded to the longest of its batch.

Imports no torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.config import DataSection
from trainer.data import tokenizer
from trainer.data.batches import IGNORED, Batch
from trainer.data.documents import Bad, Wrong, json_objects, text_of
from trainer.data.inputs import plan
from trainer.errors import DataError

_SHOWN = 10
_ROUND = 8  # lengths are padded to a multiple, so that there are few shapes


@dataclass(frozen=True)
class Examples:
    """ids: all examples one after another; example i is ids[starts[i]:starts[i + 1]], its prompt `prompts[i]` long."""

    ids: NDArray[np.uint32]
    starts: NDArray[np.int64]
    prompts: NDArray[np.int64]
    digest: str


class ExampleSamples:
    """Samples of variable length. Padding stands to the right, where no token that counts can attend to it."""

    def __init__(self, examples: Examples, *, seed: int) -> None:
        self._examples, self._seed = examples, seed
        self.count = len(examples.prompts)
        # Targets are what follows each input; those within the prompt don't count.
        self._valid = np.diff(examples.starts) - np.maximum(examples.prompts, 1)
        self._order: tuple[int, NDArray[np.int64]] | None = None

    def _at(self, counter: int) -> int:
        epoch, position = divmod(counter, self.count)
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, np.random.default_rng([self._seed, epoch]).permutation(self.count))
        return int(self._order[1][position])

    def valid_tokens(self, start: int, size: int) -> int:
        return int(sum(self._valid[self._at(counter)] for counter in range(start, start + size)))

    def read(self, counters: list[int], *, size: int) -> Batch:
        """(inputs, targets): [size, longest of the batch]."""
        chosen = [self._at(counter) for counter in counters]
        starts, prompts = self._examples.starts, self._examples.prompts
        rows = [self._examples.ids[starts[index] : starts[index + 1]].astype(np.int64) for index in chosen]
        longest = max((len(row) - 1 for row in rows), default=1)
        length = -(-longest // _ROUND) * _ROUND
        inputs = np.zeros((size, length), dtype=np.int64)
        targets = np.full((size, length), IGNORED, dtype=np.int64)
        for number, (index, row) in enumerate(zip(chosen, rows, strict=True)):
            inputs[number, : len(row) - 1] = row[:-1]
            first = max(int(prompts[index]), 1) - 1  # the input whose target is the response's first token
            targets[number, first : len(row) - 1] = row[first + 1 :]
        return inputs, targets


def load(config: DataSection) -> tuple[Examples, Examples, list[str], int]:
    """(training, held out, notes for the log, vocabulary). Raises DataError that names each bad line."""
    chosen = tokenizer.load(config.tokenizer)
    pairs, problems, bad = _pairs(config)
    if problems:
        more = f"\n… and {bad - len(problems)} more" if bad > len(problems) else ""
        raise DataError(f"data.path: bad lines: {bad}; correct them:\n" + "\n".join(problems) + more)
    parts: dict[bool, list[tuple[NDArray[Any], int]]] = {False: [], True: []}
    cut = dropped = empty = 0
    limit = config.sequence_length + 1
    prompts = chosen.encode([prompt for prompt, _ in pairs])
    responses = chosen.encode([response for _, response in pairs])
    for pair, prompt, response in zip(pairs, prompts, responses, strict=True):
        ids = np.concatenate([prompt, response, [chosen.separator]]).astype(np.uint32)
        if len(ids) > limit:
            cut, ids = cut + 1, ids[:limit]
        if len(ids) == 1:
            empty += 1  # the end follows nothing
            continue
        if len(ids) <= len(prompt):
            dropped += 1  # nothing of the response is left to train on
            continue
        number = int.from_bytes(hashlib.sha256("\0".join(pair).encode()).digest()[:8], "big")
        parts[number < config.held_out_share * 2**64].append((ids, len(prompt)))
    for name, examples in (("training", parts[False]), ("held-out", parts[True])):
        if not examples:
            raise DataError(
                f"data: the {name} part needs at least 1 example, has 0 of the {len(pairs)} in {config.path}; give "
                "more examples, or change data.held_out_share or sequence_length."
            )
    notes = []
    if cut:
        left_out = f", {dropped} of them left out because nothing of the response was left" if dropped else ""
        notes.append(f"note: {cut} of {len(pairs)} examples are cut to data.sequence_length{left_out}")
    if empty:
        notes.append(f"note: {empty} of {len(pairs)} examples are left out because they have no text")
    return _examples(parts[False]), _examples(parts[True]), notes, chosen.vocabulary


def _pairs(config: DataSection) -> tuple[list[tuple[str, str]], list[str], int]:
    """((prompt, response) pairs, the first bad lines, their number)."""
    pairs: list[tuple[str, str]] = []
    problems: list[str] = []
    bad = 0
    units = plan([config.path or ""], None, dataset_name="", text_key="", unit_bytes=2**62)
    for piece in (piece for unit in units for piece in unit.pieces):
        if piece.kind != "jsonl":
            raise DataError(f"data.path: {piece.name} is no .jsonl file; source 'jsonl' reads only those.")
        for row, offset, value in json_objects(piece):
            wrong, prompt, response = (value if isinstance(value, Wrong) else None), "", ""
            if not isinstance(value, Wrong):
                found = text_of(value, config.prompt_key) if config.prompt_key else ""
                answer = text_of(value, config.response_key)
                wrong = next((text for text in (found, answer) if isinstance(text, Wrong)), None)
                prompt, response = str(found), str(answer)
            if wrong is None:
                pairs.append((prompt, response))
                continue
            bad += 1
            if len(problems) < _SHOWN:
                problems.append(Bad(piece, wrong, row, offset).sentence())
    return pairs, problems, bad


def _examples(items: Sequence[tuple[NDArray[Any], int]]) -> Examples:
    ids = np.concatenate([ids for ids, _ in items])
    starts = np.concatenate([[0], np.cumsum([len(ids) for ids, _ in items])]).astype(np.int64)
    prompts = np.array([prompt for _, prompt in items], dtype=np.int64)
    digest = hashlib.sha256(ids.tobytes() + starts.tobytes() + prompts.tobytes()).hexdigest()
    return Examples(ids, starts, prompts, digest)
