"""Compute's lists: one place's, all places' (aggregated), filtered and page by page."""

from __future__ import annotations

import re

from tests.stand_ins.gcp import catalogue, filters
from tests.stand_ins.gcp.errors import invalid
from tests.stand_ins.gcp.schemas import Request
from tests.stand_ins.gcp.store import Body, link


def scope(request: Request, kind: str) -> str:
    """ "zones/us-central1-a", "global"; 404 or 400 for a place that isn't there."""
    if kind == "global":
        return "global"
    place = request.arguments[kind[:-1]]
    if place not in (catalogue.all_zones() if kind == "zones" else catalogue.ZONES):
        raise invalid(kind[:-1], place, "Unknown " + kind[:-1] + ".")
    return f"{kind}/{place}"


def page(request: Request, kind: str, bodies: list[Body]) -> Body:
    """One page of a list: filtered, maxResults at a time."""
    bodies = [body for body in bodies if filters.matches(request.query.get("filter", ""), body)]
    start = int(request.query.get("pageToken") or 0)
    size = int(request.query.get("maxResults") or 500)
    page: Body = {"kind": kind, "selfLink": link(request.arguments["project"])}
    if bodies[start : start + size]:
        page["items"] = bodies[start : start + size]
    if len(bodies) > start + size:
        page["nextPageToken"] = str(start + size)
    return page


def by_scope(request: Request, collection: str, item: str, scope: str, bodies: list[Body]) -> Body:
    listed = page(request, f"compute#{item}AggregatedList", bodies)
    items: dict[str, Body] = {}
    for place in catalogue.all_zones() if scope == "zones" else catalogue.ZONES:
        items[f"{scope}/{place}"] = {
            "warning": {
                "code": "NO_RESULTS_ON_PAGE",
                "message": f"There are no results for scope '{scope}/{place}' on this page.",
                "data": [{"key": "scope", "value": f"{scope}/{place}"}],
            }
        }
    for body in listed.pop("items", []):
        found = re.search(rf"/({scope}/[^/]+)/", body["selfLink"])
        assert found is not None
        there = items[found[1]]
        there.pop("warning", None)
        there.setdefault(collection, []).append(body)
    return {**listed, "items": items}
