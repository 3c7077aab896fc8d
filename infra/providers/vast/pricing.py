"""What a machine costs, from the offers of the moment: its GPUs and its disk, and what its traffic costs on top."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from infra import label
from infra.cost import Line
from infra.providers.base import Deployment
from infra.providers.vast import api, machines, plan
from infra.providers.vast.plan import Kind
from infra.stack import project_root

if TYPE_CHECKING:
    from infra.spec import ClusterSpec

SOURCE = "Vast.ai's offers"


def lines(spec: ClusterSpec, client: api.Vast, *, now: datetime) -> list[Line]:
    """By the cheapest offer; where there is none, by such a machine of this checkout's that runs; else unknown."""
    kind = plan.kind(spec)
    wanted = plan.wish(spec, kind)
    found = plan.quotes(client.offers(plan.query(wanted, lifetime_s=spec.max_lifetime_s)), wanted)
    if not found:
        return [_of_what_runs(spec, client, kind, now)]
    first = found[0]
    market = "on demand" if first.bid_usd is None else f"by a bid of ${first.bid_usd:.2f}"
    return [
        Line(
            what=f"{kind.name} {market} in {first.place}",
            usd_per_hour=first.gpus_usd_per_hour,
            source=SOURCE,
            as_of=now,
            per_use=f"and ${first.down_usd_per_gb:.4g} per GB that comes in, ${first.up_usd_per_gb:.4g} per GB that "
            "goes out",
        ),
        Line(what=f"{wanted['disk_gib']} GiB of disk", usd_per_hour=first.disk_usd_per_hour, source=SOURCE, as_of=now),
    ]


def _of_what_runs(spec: ClusterSpec, client: api.Vast, kind: Kind, now: datetime) -> Line:
    """The one offer that there was may be the very machine that runs: `pulumi up` on it must still know its price."""
    owner = _owner()
    for each in client.instances():
        told = label.parse(each.label)
        is_such = each.gpu_name in kind.names and each.num_gpus == kind.gpu_count
        is_ours = told is not None and told.owner == owner and each.is_bid == (spec.market == "spot")
        if is_ours and is_such and machines.state(each) in ("starting", "running"):
            what = f"{kind.name} as it runs ({each.id}), disk included"
            return Line(what=what, usd_per_hour=each.dph_total, source="Vast.ai's instances", as_of=now)
    return Line(what=kind.name, usd_per_hour=None, source="Vast.ai has no such offer now", as_of=now)


def _owner() -> str:
    return Deployment(root=project_root(), stack="any").owner
