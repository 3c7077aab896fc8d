"""Which rank writes what: a pure function of what each rank holds and of which ranks share a folder.

Items that exactly the same ranks hold go to the same files, in the same order. A replica on another node therefore
writes the same files under the same names, byte for byte: each node's folder has all that its ranks hold between them,
any copy can stand in for a lost one, and copies that differ reveal replicas that drifted apart.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem

PART_BYTES = 2**31  # a file ends after the item that passes this size: ranks of a folder share long lists


@dataclass(frozen=True)
class Part:
    """One file of a checkpoint and what is in it, in order."""

    name: str
    items: tuple[WriteItem, ...]


def divide(
    held: Sequence[SavePlan], places: Sequence[int], *, everywhere: bool, part_bytes: int = PART_BYTES
) -> tuple[list[list[Part]], Metadata]:
    """Per rank the files that it writes; and the metadata, still without the places of the items in the files.

    held: what each rank holds. places: per rank, the number of the folder that it sees. everywhere: each folder gets
    all that its ranks hold; otherwise each item is written once, by the lowest rank that holds it.
    """
    holders: dict[MetadataIndex, list[int]] = {}
    for rank, plan in enumerate(held):
        for item in plan.items:
            holders.setdefault(item.index, []).append(rank)
    once = [
        dataclasses.replace(plan, items=[item for item in plan.items if holders[item.index][0] == rank])
        for rank, plan in enumerate(held)
    ]
    numbered, metadata = create_default_global_save_plan(once)
    metadata.planner_data = {name: path for plan in held for name, path in (plan.planner_data or {}).items()}
    alike: dict[tuple[int, ...], list[WriteItem]] = {}
    for plan in numbered:
        for item in plan.items:
            alike.setdefault(tuple(holders[item.index]), []).append(item)
    written: list[list[Part]] = [[] for _ in held]
    counts: Counter[int] = Counter()
    for ranks, items in alike.items():
        for number, chunk in enumerate(_chunks(items, part_bytes)):
            part = Part(f"__{ranks[0]}_{counts[ranks[0]]}.distcp", tuple(chunk))
            counts[ranks[0]] += 1
            for writer in _writers(ranks, places, number=number, everywhere=everywhere):
                written[writer].append(part)
    return written, metadata


def _writers(ranks: Sequence[int], places: Sequence[int], *, number: int, everywhere: bool) -> list[int]:
    """One of the holders in each folder, or only in the folder of the lowest; they take turns from part to part."""
    by_place: dict[int, list[int]] = {}
    for rank in ranks:
        by_place.setdefault(places[rank], []).append(rank)
    groups = list(by_place.values()) if everywhere else [by_place[places[ranks[0]]]]
    return [group[number % len(group)] for group in groups]


def _chunks(items: Sequence[WriteItem], limit: int) -> list[list[WriteItem]]:
    chunks: list[list[WriteItem]] = [[]]
    size = 0
    for item in items:
        if size >= limit:
            chunks.append([])
            size = 0
        chunks[-1].append(item)
        size += item_bytes(item)
    return chunks


def item_bytes(item: WriteItem) -> int:
    """Bytes of a tensor item's own chunk; 0 for plain values."""
    if item.tensor_data is None:
        return 0
    return math.prod(item.tensor_data.chunk.sizes) * item.tensor_data.properties.dtype.itemsize
