"""What things are called on GCP, and whose they are. Pure.

A label's value holds 63 characters of a small alphabet, a name as many of a smaller one, so the identity becomes a
stem: a readable part, and a hash that keeps two stacks apart whatever was cut. Networks, firewalls, routers and
policies carry no labels: there the description says whose they are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from infra.providers.base import Deployment

STACK_LABEL, OWNER_LABEL, NODE_LABEL = "trainstack", "trainstack_owner", "trainstack_node"
LONGEST = 63
_READABLE = 16  # leaves 35 of the 63 characters: "-roce-northamerica-northeast1-a-7" has 33
_OWNER = re.compile(r"of checkout ([0-9a-f]{12})$")


def _hash(deployment: Deployment) -> str:
    return hashlib.sha256(deployment.identity.encode("utf-8", "surrogateescape")).hexdigest()[:8]


def stem(deployment: Deployment) -> str:
    """ "ts-my-stack-1a2b3c4d": what every name of the stack begins with, and the value of its label."""
    readable = re.sub(r"[^a-z0-9]+", "-", deployment.stack.lower())[:_READABLE].strip("-")
    return "-".join(part for part in ("ts", readable, _hash(deployment)) if part)


def name(deployment: Deployment, ending: str) -> str:
    """ "ts-my-stack-1a2b3c4d-node-3"."""
    return f"{stem(deployment)}-{ending}"


def bears_stem(deployment: Deployment, name_: str) -> bool:
    return name_.startswith(f"{stem(deployment)}-")


def bucket(deployment: Deployment) -> str:
    """Unique among all buckets of the world, by the checkout's own number; without the stack's name: it may not have
    "google" in it."""
    return f"{bucket_stem(deployment)}{deployment.owner}"


def bucket_stem(deployment: Deployment) -> str:
    return f"ts-{_hash(deployment)}-"


def service_account(deployment: Deployment) -> str:
    """At most 30 characters."""
    return f"ts-{_hash(deployment)}-{deployment.owner}"


def labels(deployment: Deployment, *, node: str | None = None) -> dict[str, str]:
    marks = {STACK_LABEL: stem(deployment), OWNER_LABEL: deployment.owner}
    return {**marks, NODE_LABEL: node} if node else marks


def description(deployment: Deployment) -> str:
    """The whole identity, for whoever looks at the console; and whose it is, for `leftovers`."""
    return f"{deployment.identity} of checkout {deployment.owner}"


def owner_of(resource: Mapping[str, object]) -> str | None:
    """Which checkout made it, by its label or description."""
    found = resource.get("labels")
    if isinstance(found, Mapping) and OWNER_LABEL in found:
        return str(found[OWNER_LABEL])
    match = _OWNER.search(str(resource.get("description", "")))
    return match[1] if match else None
