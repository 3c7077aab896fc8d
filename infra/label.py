"""The label of a machine on clouds that let us write one text on it, and nothing else: it tells everything.

    trainstack/<project>/<stack>/<owner>/<node>/<token>/<zone>

Not one of these can hold a slash. A label can be changed in the provider's console: what it then says is all that is
known.
"""

from __future__ import annotations

from dataclasses import dataclass

from infra.providers.base import Deployment

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


def text(deployment: Deployment, *, node: str, token: str, zone: str) -> str:
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


def problems(deployment: Deployment, *, longest: int, provider: str) -> list[str]:
    """A sentence where the labels of this stack are longer than the provider takes."""
    if len(deployment.identity) + _LONGEST_TAIL <= longest:
        return []
    return [f"the label of {deployment.identity!r} is longer than {provider}'s {longest}: take a shorter stack name"]
