"""Moto's stores, as the rules read them."""

from __future__ import annotations

from typing import Any

from moto.core import DEFAULT_ACCOUNT_ID as ACCOUNT
from moto.ec2.models import ec2_backends

GONE = ("terminated",)


def ec2(region: str) -> Any:
    return ec2_backends[ACCOUNT][region]


def live_instances(backend: Any) -> list[Any]:
    """All but terminated ones: one that is shutting down still holds its group, its interface and its placement."""
    return [each for each in backend.all_instances() if each.state not in GONE]


def live_nat_gateways(backend: Any) -> list[Any]:
    return [each for each in backend.nat_gateways.values() if each.state != "deleted"]


def live_endpoints(backend: Any) -> list[Any]:
    return [each for each in backend.vpc_end_points.values() if each.state != "deleted"]


def all_groups(backend: Any) -> list[Any]:
    return [group for groups in backend.groups.values() for group in groups.values()]


def all_subnets(backend: Any) -> list[Any]:
    return [subnet for zone in backend.subnets.values() for subnet in zone.values()]


def tags(backend: Any, resource_id: str) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in backend.tags.get(resource_id, {}).items()]
