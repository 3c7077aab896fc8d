"""What a machine is to know when it starts, whichever way its cloud tells it (user_data.py, container_start.py)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class FirstBoot:
    """What one machine is to know at its start."""

    name: str
    """Host name: "node-0"."""
    host_key: str
    """Private host key in OpenSSH's format. Whoever can read what the machine was made from can read it."""
    host_public_key: str
    authorized_key: str
    """The stack's public key: the one way in."""
    expires_at: datetime
    lifetime_s: int


@dataclass(frozen=True, kw_only=True)
class Login:
    """Who logs in, and where his things are."""

    user: str
    work_dir: str
    """Absolute path: Node.work_dir."""
