"""What the tests of all clouds order: a machine with made-up keys."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from infra.first_boot import FirstBoot
from infra.gang import Order

PUBLIC_KEY = "ssh-ed25519 AAAAtest"
NOW = datetime(2026, 12, 3, 12, 0, tzinfo=UTC)


def boot(
    name: str = "node-0",
    *,
    now: datetime = NOW,
    lifetime_s: int = 3600,
    host_key: str = "PRIVATE",
    authorized_key: str = PUBLIC_KEY,
) -> FirstBoot:
    return FirstBoot(
        name=name,
        host_key=host_key,
        host_public_key="ssh-ed25519 AAAAhost",
        authorized_key=authorized_key,
        expires_at=now + timedelta(seconds=lifetime_s),
        lifetime_s=lifetime_s,
    )


def order(
    name: str = "node-0", *, zone: str, token: str = "0" * 32, now: datetime = NOW, lifetime_s: int = 3600
) -> Order:
    rank = int(name.rpartition("-")[2])
    return Order(boot=boot(name, now=now, lifetime_s=lifetime_s), rank=rank, zone=zone, token=token)
