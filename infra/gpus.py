"""GPUs as a user asks for them, "H100:8", and the choice among a provider's machine types. Pure.

Each provider has its own table and its own kind of type; what they share is a name, a GPU model and a count.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

from infra.errors import SpecError

if TYPE_CHECKING:
    from infra.spec import ClusterSpec

_GPUS = re.compile(r"([A-Za-z0-9][A-Za-z0-9-]*):([1-9][0-9]*)")


class MachineType(Protocol):
    """What the choice looks at."""

    @property
    def name(self) -> str: ...
    @property
    def gpu_model(self) -> str: ...
    @property
    def gpu_count(self) -> int: ...
    @property
    def gpu_memory_gib(self) -> float: ...
    @property
    def vcpus(self) -> int: ...


Type = TypeVar("Type", bound=MachineType)


def wanted(spec: ClusterSpec, types: Mapping[str, Type], *, provider: str, example: str) -> list[Type]:
    """The named one, or those with the GPUs asked for. Raises SpecError, its key in front; `example` is one's name."""
    if (spec.instance is None) == (spec.gpus is None):
        given = "neither is there" if spec.gpus is None else "both are there"
        raise SpecError(f"gpus or instance: {given}: write one of the two, as `gpus: H100:8` or `instance: {example}`")
    try:
        if spec.instance is not None:
            return [by_name(spec.instance, types, provider=provider)]
        return matching(str(spec.gpus), types, provider=provider)
    except SpecError as error:
        raise SpecError(f"{'gpus' if spec.instance is None else 'instance'}: {error}") from None


def parse(gpus: str) -> tuple[str, int]:
    """ "H100:8" to ("H100", 8): the model and how many of it one machine has."""
    match = _GPUS.fullmatch(gpus)
    if match is None:
        raise SpecError(
            f"GPUs {gpus!r} are not MODEL:COUNT: write the model and the number in one machine, as in H100:8"
        )
    return match[1], int(match[2])


def matching(gpus: str, types: Mapping[str, Type], *, provider: str) -> list[Type]:
    """The types with exactly these GPUs, the one with the fewest vCPUs first. Upper and lower case are the same."""
    model, count = parse(gpus)
    found = [t for t in types.values() if t.gpu_model.upper() == model.upper() and t.gpu_count == count]
    if not found:
        counts: dict[str, set[int]] = {}
        for machine in types.values():
            counts.setdefault(machine.gpu_model, set()).add(machine.gpu_count)
        there = "; ".join(f"{known}: {', '.join(map(str, sorted(counts[known])))}" for known in sorted(counts))
        raise SpecError(f"no machine type of {provider} has GPUs {gpus}: take a model and a count of these ({there})")
    return sorted(found, key=lambda machine: (machine.vcpus, machine.name))


def by_name(name: str, types: Mapping[str, Type], *, provider: str) -> Type:
    if name not in types:
        nearest = difflib.get_close_matches(name.lower(), types, n=3, cutoff=0.5) or sorted(types)
        raise SpecError(
            f"machine type {name!r} isn't in the table of {provider}: take one such as {', '.join(nearest)}"
        )
    return types[name]
