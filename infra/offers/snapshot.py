"""Dated offers that ship with this checkout, for what can't be asked: snapshot.json; infra/prices for AWS and GCP."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt

from infra import prices
from infra.offers.machines import TABLES
from infra.offers.offer import Market, Network, Offer

TABLE = Path(__file__).with_name("snapshot.json")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Machine(_Strict):
    instance: str
    gpu_model: str
    gpu_count: PositiveInt
    gpu_memory_gib: PositiveFloat | None
    usd_per_hour: dict[Market, PositiveFloat | None]
    """Market to price; a market that isn't there isn't sold, and null is an unknown price."""
    network: Network | None = None
    """Of this machine, where it isn't the group's."""


class _Group(_Strict):
    """Machines of one provider with figures of one source and date."""

    provider: str
    source: str
    as_of: date
    regions: list[str | None]
    """The price is the same in all of them; null: the source doesn't tell where."""
    network: Network
    fewest_nodes: int = 1
    most_nodes: int | None = None
    machines: list[_Machine]


class _Snapshot(_Strict):
    notes: list[str]
    groups: list[_Group]


def offers() -> tuple[Offer, ...]:
    """All of it, whatever its age."""
    file = _Snapshot.model_validate_json(TABLE.read_text(encoding="utf-8"))
    return (*(each for group in file.groups for each in _of_group(group)), *_of_catalogues())


def _of_group(group: _Group) -> Iterator[Offer]:
    for machine in group.machines:
        for market, usd in machine.usd_per_hour.items():
            for region in group.regions:
                yield Offer(
                    provider=group.provider,
                    instance=machine.instance,
                    region=region,
                    gpu_model=machine.gpu_model,
                    gpu_count=machine.gpu_count,
                    gpu_memory_gib=machine.gpu_memory_gib,
                    market=market,
                    network=machine.network or group.network,
                    usd_per_hour=usd,
                    available=None,
                    source=group.source,
                    as_of=prices.start_of(group.as_of),
                    fewest_nodes=group.fewest_nodes,
                    most_nodes=group.most_nodes,
                )


def _of_catalogues() -> Iterator[Offer]:
    """An entry without a price is an offer at an unknown price: a type that is sold as capacity blocks only is one."""
    for provider, table in TABLES.items():
        machines, (source, as_of) = table(), prices.origin(provider)
        for region, instance in prices.machines(provider):
            if (machine := machines.get(instance)) is None:
                continue
            for market in machine.markets:
                price = prices.machine(provider, region=region, instance=instance, market=market)
                yield machine.offer(
                    region=region,
                    market=market,
                    usd_per_hour=None if price is None else price.usd,
                    source=source if price is None else price.source,
                    as_of=as_of if price is None else price.as_of,
                )
