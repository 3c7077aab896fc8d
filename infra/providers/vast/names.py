"""The label of an instance: the one thing that we may write on it, so it tells everything, within 256 characters.

    trainstack/<project>/<stack>/<owner>/<node>/<token>/<zone>

Not one of these can hold a slash. A label can be changed in Vast.ai's console: what it then says is all that is known.
"""

from __future__ import annotations

from dataclasses import dataclass

from infra.providers.base import Deployment

LONGEST = 256
_PARTS = 7
_LONGEST_TAIL = len("/0123456789ab/node-0/") + 32 + len("/anywhere")


@dataclass(frozen=True, kw_only=True)
class Label:
    """What a label of ours tells."""

    identity: str
    owner: str
    node: str
    token: str
    zone: str


def label(deployment: Deployment, *, node: str, token: str, zone: str) -> str:
    return "/".join((deployment.identity, deployment.owner, node, token, zone))


def parse(text: str | None) -> Label | None:
    """None for a label that isn't ours."""
    parts = (text or "").split("/")
    if len(parts) != _PARTS or parts[0] != "trainstack":
        return None
    owner, node, token, zone = parts[3:]
    return Label(identity="/".join(parts[:3]), owner=owner, node=node, token=token, zone=zone)


def is_ours(text: str | None, deployment: Deployment) -> bool:
    """Of this stack and of this checkout."""
    found = parse(text)
    return found is not None and (found.identity, found.owner) == (deployment.identity, deployment.owner)


def problems(deployment: Deployment) -> list[str]:
    if len(deployment.identity) + _LONGEST_TAIL <= LONGEST:
        return []
    return [f"the label of {deployment.identity!r} is longer than Vast.ai's {LONGEST}: take a shorter stack name"]
