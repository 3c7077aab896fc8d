"""The recipe is one on all ranks: whoever copies files to nodes by hand has an old one somewhere."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

from trainer.config import Recipe
from trainer.distributed import Processes
from trainer.errors import ConfigError

# What each node may have under a path, or to an extent, of its own; that what is there is the same is seen elsewhere.
_OWN = (
    *("output_dir", "data.path", "data.cache_dir", "data.cache_gib", "data.tokenizer", "model.huggingface"),
    *("model.module", "checkpoint.location", "checkpoint.initialise_from", "strategy.nvme_path"),
    *("strategy.deepspeed_config", "watch.notice_file", "metrics"),
)


def check_alike(recipe: Recipe, here: Processes) -> None:
    """Raises ConfigError, on all ranks, when they would train with other numbers or for another number of steps."""
    mine = dict(_leaves(recipe.model_dump(mode="json")))
    first = here.from_rank(mine if here.rank == 0 else None, source=0)
    differing = sorted(key for key in mine.keys() | first.keys() if mine.get(key) != first.get(key))
    found = here.gather((differing[0], mine.get(differing[0]), socket.gethostname()) if differing else None)
    for rank, answer in enumerate(found):
        if answer is not None:
            key, value, host = answer
            raise ConfigError(
                f"{key} is {value} on rank {rank} on {host} and {first.get(key)} on rank 0; give all ranks the same "
                "recipe and the same --set."
            )


def _leaves(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        key = prefix + name
        if not f"{key}.".startswith(tuple(f"{own}." for own in _OWN)):
            if isinstance(value, dict):
                yield from _leaves(value, f"{key}.")
            else:
                yield key, value
