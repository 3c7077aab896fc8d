"""`fab prices`: ask, choose, show. stdout holds the answer; stderr who is asked, and why none came."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

from infra.offers import asking, table, wish
from infra.offers.sources import SOURCES


def show(
    *,
    gpu: str | None,
    count: str | None,
    nodes: str | None,
    is_spot: bool,
    region: str | None,
    max_hourly: str | None,
    as_json: bool,
) -> None:
    """Raises SpecError for an option that can't be, NoOfferError when no offer fits."""
    asked = wish.parse(gpu=gpu, count=count, nodes=nodes, is_spot=is_spot, region=region, max_hourly=max_hourly)
    names = ", ".join(source.name for source in SOURCES.values())
    print(f"asking {names}: at most {asking.DEADLINE_S:g} s", file=sys.stderr, flush=True)
    gathered = asking.gather(asked)
    found = wish.fitting(gathered.offers, asked)
    notes = [*gathered.notes, *wish.left_out(gathered.offers, asked)]
    if not found:
        print(*notes, sep="\n", file=sys.stderr, flush=True)
        raise wish.nothing(gathered.offers, asked)
    render = table.document if as_json else table.text
    print(render(found, notes, wish=asked, now=datetime.now(UTC)))
