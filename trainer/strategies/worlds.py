"""Which numbers of ranks a strategy takes, known before torch is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.errors import ConfigError

if TYPE_CHECKING:
    from trainer.config import Recipe


def check_single(recipe: Recipe, world: int) -> None:
    """Raises ConfigError for more than one rank."""
    del recipe
    if world > 1:
        raise ConfigError(f"strategy.name 'single' takes one process, not {world}; choose another one.")


def check_replicas(recipe: Recipe, world: int) -> None:
    """Raises ConfigError for replicas that the ranks can't be divided into."""
    replicas = recipe.strategy.replicate
    if replicas is not None and world % replicas:
        raise ConfigError(
            f"strategy.replicate {replicas} does not divide the world size {world}; choose one of {_divisors(world)}."
        )


def replicas_of_nodes(ranks_per_node: set[int], world: int) -> int:
    """One replica a node. Raises ConfigError where nodes have unequal numbers of ranks."""
    if len(ranks_per_node) > 1:
        raise ConfigError(
            f"strategy.name 'hsdp' makes each node a replica, and nodes have {min(ranks_per_node)} to "
            f"{max(ranks_per_node)} ranks; set strategy.replicate to one of {_divisors(world)}."
        )
    return max(1, world // min(ranks_per_node))


def _divisors(world: int) -> str:
    return ", ".join(str(n) for n in range(1, world + 1) if world % n == 0)
