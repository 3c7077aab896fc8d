"""Names and tags within Lambda's limits: names 64 characters, tag keys 55 of a-z0-9-:, tag values 128."""

from __future__ import annotations

from infra.providers.base import Deployment

IDENTITY_TAG, OWNER_TAG, NODE_TAG, TOKEN_TAG = "trainstack", "trainstack-owner", "trainstack-node", "trainstack-token"
LONGEST_TAG = 128


def name(deployment: Deployment, what: str = "") -> str:
    """Of a machine ("trainstack-0123abcd-node-3"), a ruleset or the key: by checkout and stack, never two alike."""
    return f"trainstack-{deployment.digest}" + (f"-{what}" if what else "")


def tags(deployment: Deployment, *, node: str, token: str) -> list[dict[str, str]]:
    told = {
        IDENTITY_TAG: deployment.identity,
        OWNER_TAG: deployment.owner,
        NODE_TAG: node,
        TOKEN_TAG: token,
    }
    return [{"key": key, "value": value} for key, value in told.items()]
