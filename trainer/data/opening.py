"""The recipe's data, opened: the same on every rank, or refused on every rank."""

from __future__ import annotations

import hashlib
import inspect
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trainer.config import DataSection, Recipe
from trainer.data import cache, examples, manifest, shards, sources
from trainer.data.batches import Batch, Samples, Windows
from trainer.data.prefetch import Feed
from trainer.data.storage import Folder, is_remote, local_path
from trainer.errors import ConfigError, DataError, TrainerError
from trainer.models import limits
from trainer.models.sections import LlamaSection


@dataclass(frozen=True)
class Data:
    """What a run reads. digest: equal digests, equal tokens."""

    training: Samples
    held_out: Samples | None  # None: prepared with --split-share 0
    digest: str
    vocabulary: int  # ids are below this
    notes: tuple[str, ...] = ()
    close: Callable[[], None] = lambda: None

    def feed(self, recipe: Recipe, *, rank: int, world: int) -> Feed:
        training = recipe.training
        return Feed(
            self.training, size=training.global_batch_size, micro=training.micro_batch_size, rank=rank, world=world
        )

    def held_out_batches(self, recipe: Recipe, *, rank: int, world: int) -> Iterator[tuple[Batch, bool]] | None:
        """(micro-batch, whether it counts) of one rank: equally many on every rank, padded with ignored targets,
        because a sharded model needs all ranks in each forward pass. None without a held-out part."""
        held_out, micro = self.held_out, recipe.training.micro_batch_size
        if held_out is None:
            return None
        count = scored(recipe, held_out)
        mine = list(range(rank, count, world))
        starts = range(0, -(-count // world), micro)
        return ((held_out.read(mine[start : start + micro], size=micro), True) for start in starts)


class _Ranks(Protocol):
    def gather(self, value: Any) -> list[Any]: ...


def open_data(recipe: Recipe, *, vocabulary: int | None) -> Data:
    """vocabulary: the model's, where the recipe says it. Raises ConfigError or DataError."""
    config = recipe.data
    if config.source == "shards":
        data = _open_shards(recipe, vocabulary=vocabulary)
    elif config.source == "jsonl":
        training, held_out, notes, ids = examples.load(config)
        digest = hashlib.sha256(f"{training.digest}|{held_out.digest}".encode()).hexdigest()
        first, second = (
            examples.ExampleSamples(part, seed=seed) for part, seed in ((training, recipe.seed), (held_out, 0))
        )
        data = Data(first, second, digest, ids, tuple(notes))
    else:
        corpus = sources.load(config)
        windows = [
            Windows(tokens, length=config.sequence_length, seed=seed, packing=config.packing)
            for tokens, seed in ((corpus.training, recipe.seed), (corpus.held_out, 0))
        ]
        data = Data(windows[0], windows[1], corpus.digest, sources.SEPARATOR + 1)
    if vocabulary is not None and data.vocabulary > vocabulary:
        raise ConfigError(_too_small(data.vocabulary, vocabulary))
    return data


def check_here(recipe: Recipe) -> list[str]:
    """Notes on what can't be seen from here. Raises what training would raise for shards that are on this machine.

    Nothing is downloaded, no document is read, and torch isn't imported.
    """
    config = recipe.data
    if config.source in ("stdlib", "module") or config.path is None:
        return []
    if is_remote(config.path):
        return [f"note: data.path {config.path} is not on this machine, so the data is not checked"]
    if not local_path(config.path).exists():
        return [f"note: there is no {config.path} on this machine, so the data is not checked"]
    if config.source == "shards":
        vocabulary, positions = limits.told(recipe.model)
        named = recipe.model.vocabulary if isinstance(recipe.model, LlamaSection) else None
        ids = _open_shards(recipe, vocabulary=named).vocabulary
        limits.check(vocabulary, positions, ids=ids, length=config.sequence_length)
    return []


def open_together(recipe: Recipe, here: _Ranks, *, vocabulary: int | None) -> Data:
    """open_data on every rank; when one can't, or reads other tokens, all raise the same error."""
    data: Data | None = None
    error: TrainerError | None = None
    try:
        data = open_data(recipe, vocabulary=vocabulary)
    except TrainerError as raised:
        error = raised
    found = here.gather((socket.gethostname(), data.digest if data else None, error))
    failed = [(rank, host, problem) for rank, (host, _, problem) in enumerate(found) if problem is not None]
    if failed:
        rank, host, problem = failed[0]
        everywhere = len(failed) == len(found)
        raise type(problem)(str(problem) if everywhere else f"rank {rank} on {host}: {problem}")
    other = next((rank for rank, (_, digest, _) in enumerate(found) if digest != found[0][1]), None)
    if other is not None:
        raise DataError(
            f"data: rank 0 on {found[0][0]} and rank {other} on {found[other][0]} read different documents; "
            "give all nodes the same files."
        )
    assert data is not None
    return data


def check_packing(config: DataSection, model: Any) -> None:
    """Refuses packing "documents" for a model that would attend across the documents of a window."""
    if config.packing == "documents" and "documents" not in inspect.signature(model.forward).parameters:
        raise ConfigError(
            f"data.packing 'documents' needs a model whose forward takes `documents`, and {type(model).__name__} "
            "doesn't: it would attend from one document to the next; use data.packing: stream."
        )


def scored(recipe: Recipe, held_out: Samples) -> int:
    """How many held-out samples an evaluation reads: the same for the model and for the baseline."""
    return min(held_out.count, recipe.training.evaluation_batches * recipe.training.global_batch_size)


def _open_shards(recipe: Recipe, *, vocabulary: int | None) -> Data:
    config = recipe.data
    folder = Folder(config.path or "")
    made = manifest.load(folder)
    highest = max((shard.max_id for shard in made.shards), default=0)
    if highest >= made.vocabulary:
        raise DataError(f"{folder.url} holds id {highest}, but its vocabulary is {made.vocabulary}; prepare it again.")
    if vocabulary is not None and made.vocabulary > vocabulary:
        raise ConfigError(_too_small(made.vocabulary, vocabulary))
    if folder.remote:
        limit = None if config.cache_gib is None else int(config.cache_gib * 2**30)
        root = Path(config.cache_dir).expanduser() if config.cache_dir else cache.default_folder()
        store: shards.Store = cache.CachedStore(folder, made, root=root, limit_bytes=limit)
    else:
        store = shards.LocalStore(folder, made)

    def windows(split: manifest.Split, seed: int) -> shards.ShardWindows:
        return shards.ShardWindows(
            made,
            split,
            store,
            length=config.sequence_length,
            seed=seed,
            packing=config.packing,
            vocabulary=made.vocabulary,
        )

    held_out = windows("held_out", 0) if made.of("held_out") else None
    return Data(windows("training", recipe.seed), held_out, made.digest, made.vocabulary, close=store.close)


def _too_small(needed: int, vocabulary: int) -> str:
    return (
        f"model.vocabulary {vocabulary} is too small: the data's tokenizer has {needed} ids; "
        f"set model.vocabulary to at least {needed}, or prepare the data with another tokenizer."
    )
