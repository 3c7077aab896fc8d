"""The answer of `fab choose`: a table for people, one JSON document for programs. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from infra.choice import stack_file
from infra.choice.assumptions import Assumptions
from infra.choice.rows import Forecast, Row
from infra.cost import dollars
from infra.offers.table import aligned

_HEAD = (
    *("run $", "hours", "$/h", "market", "provider", "machines", "GPUs", "region", "strategy", "GiB", "bound by"),
    "free now",
)
_RIGHT = ("run $", "hours", "$/h", "GiB")
_FREE = {True: "yes", False: "no", None: "unknown"}
SHOWN = 20


def text(rows: Sequence[Row], notes: Iterable[str], *, forecast: Forecast, assumed: Assumptions, now: datetime) -> str:
    told = aligned([_HEAD, *(_row(row) for row in rows[:SHOWN])], right=_RIGHT)
    if len(rows) > SHOWN:
        told.append(f"… and {len(rows) - SHOWN} dearer ones (--json shows all)")
    what = f"{forecast.experiment}: {forecast.parameters:,} parameters, {forecast.tokens:,} tokens"
    origins = {(row.candidate.offer.source, row.candidate.offer.as_of) for row in rows[:SHOWN]}
    sources = [f"price: {source}, as of {as_of:%Y-%m-%d}" for source, as_of in sorted(origins)]
    if any(row.candidate.offer.is_stale(now) for row in rows[:SHOWN]):
        sources.append("some of these prices are older than a month: look at the provider's own before you rely on it")
    first = rows[0]
    train = f"the first with: fab train --set strategy='{json.dumps(first.strategy)}'"
    return "\n".join([what, "", *told, "", f"assumed, not measured: {assumed}", train, *sources, *notes])


def document(
    rows: Sequence[Row], notes: Iterable[str], *, forecast: Forecast, assumed: Assumptions, now: datetime
) -> str:
    whole = {
        "experiment": forecast.experiment,
        "parameters": forecast.parameters,
        "tokens": forecast.tokens,
        "flops_per_token": forecast.flops_per_token,
        "assumed": dataclasses.asdict(assumed),
        "asked_at": now.isoformat(),
        "rows": [_json(row) for row in rows],
        "notes": list(notes),
    }
    return json.dumps(whole, indent=2, ensure_ascii=False)


def _json(row: Row) -> dict[str, Any]:
    offer = row.candidate.offer
    return {
        "cluster": stack_file.config(row),
        "provider": offer.provider,
        "instance": offer.instance,
        "nodes": row.candidate.nodes,
        "gpu_model": offer.gpu_model,
        "gpus_per_node": offer.gpu_count,
        "market": offer.market,
        "regions": list(row.candidate.regions),
        "available": offer.available,
        "strategy": row.strategy,
        "peak_gib": row.peak_gib,
        "host_gib_per_machine": row.host_gib,
        "hours": row.hours,
        "usd_per_hour": offer.usd_per_hour_of(row.candidate.nodes),
        "usd": row.usd,
        "bound_by": row.bound,
        "price_source": offer.source,
        "price_as_of": offer.as_of.isoformat(),
    }


def _row(row: Row) -> tuple[str, ...]:
    offer, regions = row.candidate.offer, row.candidate.regions
    more = f" and {len(regions) - 1} more" if len(regions) > 1 else ""
    return (
        dollars(row.usd).removeprefix("$"),
        f"{row.hours:.1f}",
        dollars(offer.usd_per_hour_of(row.candidate.nodes)).removeprefix("$"),
        offer.market,
        offer.provider,
        f"{row.candidate.nodes} × {offer.instance}",
        f"{row.candidate.nodes * offer.gpu_count} × {offer.gpu_model}",
        f"{regions[0]}{more}" if regions else "unknown",
        " ".join(str(value) for value in row.strategy.values())
        + (f" ({row.host_gib:.0f} GiB of host memory)" if row.host_gib else ""),
        f"{row.peak_gib:.0f}",
        row.bound,
        _FREE[offer.available],
    )
