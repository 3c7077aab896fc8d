"""The stack file that a row of `fab choose` comes to. Pure, but for the one file that it writes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import yaml

from infra import spec
from infra.choice.rows import Row
from infra.cost import dollars
from infra.errors import SpecError
from infra.providers import load
from infra.stack import checked_stack_name

_BY_GPUS = ("runpod", "vast")
"""Their machines have no names that a stack file could ask for."""
_ROOM = 1.25
"""More hours than predicted before the guard ends the machines: a prediction is no promise."""
_EXTRAS = 1.15
"""More dollars an hour than the machines: disks, addresses, NAT."""


def config(row: Row) -> dict[str, Any]:
    """What stands under `trainstack:cluster`."""
    offer, nodes = row.candidate.offer, row.candidate.nodes
    wanted: dict[str, Any] = {"provider": offer.provider, "nodes": nodes}
    if offer.provider in _BY_GPUS:
        wanted["gpus"] = f"{offer.gpu_model}:{offer.gpu_count}"
    else:
        wanted["instance"] = offer.instance
        if row.candidate.regions:
            wanted["region"] = row.candidate.regions[0]
    if offer.market != "on-demand":
        wanted["market"] = offer.market
    hours = min(math.ceil(row.hours * _ROOM), spec.MAX_LIFETIME_S // 3600)
    wanted["max_lifetime"] = f"{hours}h"
    usd = offer.usd_per_hour_of(nodes)
    if usd is not None:
        wanted["max_hourly_usd"] = math.ceil(usd * _EXTRAS * 100) / 100
    return wanted


def text(row: Row, *, experiment: str) -> str:
    predicted = f"{row.hours:.1f} h and {dollars(row.usd)}" if row.usd is not None else f"{row.hours:.1f} h"
    head = (
        f"# Written by `fab choose` for the recipe of experiment {experiment}: about {predicted}, predicted, not\n"
        "# measured. Costs money: see `pulumi preview` first, and end it with `make destroy`.\n"
    )
    content = {"config": {f"trainstack:{spec.CONFIG_KEY}": config(row)}}
    return head + yaml.safe_dump(content, sort_keys=False)


def write(row: Row, *, root: Path, stack: str, experiment: str) -> Path:
    """Raises SpecError when the stack has a file already, or the file would be one that `pulumi up` refuses."""
    path = root / "stacks" / f"Pulumi.{checked_stack_name(stack)}.yaml"
    made = spec.parse(config(row), file=path.name)
    wrong = spec.foreign_keys(made, load(made.provider).keys, file=path.name)
    if wrong:
        raise SpecError("\n".join(wrong))
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text(row, experiment=experiment))
    except FileExistsError:
        raise SpecError(f"{path} is there already, and isn't overwritten: name another stack, or remove it") from None
    return path
