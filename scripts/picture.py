"""A picture of what a stack would make, drawn from the program's own resource graph.

pulumi preview --stack aws --json | python -m scripts.picture        prints a Mermaid flowchart

What is made once a zone or once an address is one box with its number; an arrow goes from what is needed to what needs
it, left out where a longer way says it already. Thick boxes bill by the hour.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

BILL = frozenset(
    {"Gang", "Eip", "NatGateway", "Address", "RouterNat", "LustreFileSystem", "FileSystem", "Instance", "Disk"}
)
_LEFT_OUT = ("pulumi:pulumi:", "pulumi:providers:", "trainstack:")
Box = tuple[str, str]
"""Kind and name: ("Subnet", "public")."""


def picture(preview: Mapping[str, Any]) -> str:
    """Mermaid's text for the answer of `pulumi preview --json`."""
    resources = [step["newState"] for step in preview["steps"] if not step["newState"]["type"].startswith(_LEFT_OUT)]
    box_of = {resource["urn"]: _box(resource["urn"]) for resource in resources}
    needs: dict[Box, set[Box]] = {box: set() for box in box_of.values()}
    for resource in resources:
        box = box_of[resource["urn"]]
        needed = {*resource.get("dependencies", []), *_by_property(resource)}
        needs[box] |= {box_of[urn] for urn in needed if urn in box_of} - {box}
    counts = Counter(box_of.values())
    ids = {box: f"n{place}" for place, box in enumerate(sorted(needs))}
    lines = ["flowchart LR"]
    for box, id_ in ids.items():
        label = f"{box[0]}<br/>{box[1]}" + (f" ×{counts[box]}" if counts[box] > 1 else "")
        lines.append(f'    {id_}["{label}"]' + (":::bills" if box[0] in BILL else ""))
    for box, id_ in ids.items():
        lines += [f"    {ids[needed]} --> {id_}" for needed in sorted(_direct(box, needs))]
    lines.append("    classDef bills stroke-width:4px")
    return "\n".join(lines)


def _by_property(resource: Mapping[str, Any]) -> Iterable[str]:
    for urns in resource.get("propertyDependencies", {}).values():
        yield from urns or ()


def _box(urn: str) -> Box:
    type_, _, name = urn.rpartition("::")
    return type_.rpartition(":")[2], name.split("-")[0]


def _direct(box: Box, needs: Mapping[Box, set[Box]]) -> set[Box]:
    """What `box` needs, without what one of these needs already."""
    through = set[Box]()
    for needed in needs[box]:
        through |= _all(needed, needs, set())
    return needs[box] - through


def _all(box: Box, needs: Mapping[Box, set[Box]], seen: set[Box]) -> set[Box]:
    for needed in needs[box] - seen:
        seen.add(needed)
        _all(needed, needs, seen)
    return seen


if __name__ == "__main__":
    print(picture(json.load(sys.stdin)))
