"""What torchrun told this process about the others. Imports no torch."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

from trainer.errors import ConfigError

_JOINING = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Launched:
    """`joins`: whether there are other processes to find, or a launcher that would have us look."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    joins: bool


def launched() -> Launched:
    """Raises ConfigError for an environment that names a world and no way into it."""
    joins, world = "RANK" in os.environ, world_size()
    missing = [name for name in _JOINING if name not in os.environ]
    if missing and (joins or world > 1):
        given = " and ".join(f"{name} {os.environ[name]}" for name in _JOINING if name in os.environ)
        raise ConfigError(
            f"the environment has {given} but no {' and no '.join(missing)}; start the ranks with torchrun, or unset "
            "these variables for one process."
        )
    rank, local_world = _whole("RANK", 0), _whole("LOCAL_WORLD_SIZE", 1)
    return Launched(rank, world, _whole("LOCAL_RANK", 0), local_world, joins)


def world_size() -> int:
    """1 without a launcher. Raises ConfigError."""
    return _whole("WORLD_SIZE", 1)


@functools.cache
def agent() -> int | None:
    """torchrun's process; None without torchrun.

    The first answer stays: it is asked for before anything slow, because the kernel never tells who the parent was.
    """
    return os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None


def orphaned() -> bool:
    """Whether torchrun was killed: nobody else would end this process."""
    return agent() is not None and os.getppid() != agent()


def _whole(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"the environment variable {name} is {text!r}, not a whole number; torchrun sets it.")
    return int(text)
