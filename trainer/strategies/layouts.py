"""How each strategy divides parameters, gradients and optimizer state over ranks: what a prediction of memory needs.

Imports no torch. The order is from the simplest to the most involved: among equals, the first is the one to run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Layout:
    """parameters, gradients, optimizer: over how many ranks each is divided; 1 is a full copy on every rank."""

    settings: dict[str, Any]  # the recipe's section `strategy`
    ranks: int
    parameters: int = 1
    gradients: int = 1
    optimizer: int = 1
    replicas: int = 1  # groups of ranks that hold the same shards
    buckets: bool = False  # gradients are copied into buffers that are sent
    bucket_elements: int | None = None  # elements of one buffer that is used again; None: buffers for all gradients
    gathers: bool = False  # parameters are gathered block by block, in each forward and each backward pass
    masters: bool = False  # parameters are in the training precision, with float32 copies beside the optimizer state
    shares_updates: bool = False  # each rank updates its part of the parameters and sends it to all
    reduces_always: bool = False  # gradients are sent in every micro-batch, not only in the last of a step
    in_host: frozenset[str] = field(default_factory=frozenset)  # of parameters, gradients, optimizer

    @property
    def name(self) -> str:
        """For example: fsdp, or deepspeed stage=3 offload_optimizer=cpu."""
        name, *others = self.settings.values()
        keys = list(self.settings)[1:]
        return " ".join([str(name), *(f"{key}={_word(value)}" for key, value in zip(keys, others, strict=True))])


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def layouts(ranks: int, *, per_node: int) -> list[Layout]:
    """Every layout that makes sense on `ranks` ranks, `per_node` of them on each node."""
    inside = min(per_node, ranks)
    host_optimizer = frozenset({"gradients", "optimizer"})
    host_all = host_optimizer | {"parameters"}
    if ranks == 1:
        found = [Layout({"name": "single"}, ranks)]
    else:
        found = [Layout({"name": "ddp"}, ranks, buckets=True)]
        if ranks > inside > 1 and ranks % inside == 0:
            found.append(_fsdp({"name": "hsdp", "replicate": ranks // inside}, ranks, shards=inside))
        found.append(_fsdp({"name": "fsdp"}, ranks, shards=ranks))
        found += [_zero(stage, ranks) for stage in (1, 2, 3)]
    return [
        *found,
        _zero(2, ranks, host_optimizer, offload_optimizer="cpu"),
        _fsdp({"name": "fsdp", "cpu_offload": True}, ranks, shards=ranks, in_host=host_all),
        _zero(3, ranks, host_optimizer, offload_optimizer="cpu"),
        _zero(3, ranks, host_all, offload_optimizer="cpu", offload_parameters="cpu"),
    ]


def _fsdp(settings: dict[str, Any], ranks: int, *, shards: int, in_host: frozenset[str] = frozenset()) -> Layout:
    return Layout(
        settings,
        ranks,
        parameters=shards,
        gradients=shards,
        optimizer=shards,
        replicas=ranks // shards,
        gathers=True,
        in_host=in_host,
    )


def _zero(stage: int, ranks: int, in_host: frozenset[str] = frozenset(), **offload: str) -> Layout:
    return Layout(
        {"name": "deepspeed", "stage": stage, **offload},
        ranks,
        parameters=ranks if stage == 3 else 1,
        gradients=ranks if stage >= 2 else 1,
        optimizer=ranks,
        buckets=stage < 3,
        bucket_elements=500_000_000,
        gathers=stage == 3,
        masters=True,
        shares_updates=stage < 3,
        reduces_always=stage >= 2,
        in_host=in_host,
    )
