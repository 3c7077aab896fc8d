"""What launcher tests share: a cluster of folders on this machine, and waiting with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from infra.cluster import VERSION, Cluster, Endpoint, Node, Price

HERE = Path(__file__).parent
STAND_IN_TORCH = HERE / "stand_in_torch"
DEADLINE_S = 60.0


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """Polls until `condition()` is true and returns it."""
    deadline = time.monotonic() + DEADLINE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {DEADLINE_S} s in vain: {what}"
        time.sleep(0.05)
    return value


def make_cluster(folder: Path, *, nodes: int = 2, processes_per_node: int = 2) -> Cluster:
    now = datetime.now(UTC)
    return Cluster(
        version=VERSION,
        project="trainstack",
        stack="test",
        provider="local",
        region=None,
        zone=None,
        created_at=now,
        expires_at=now + timedelta(hours=1),
        price=Price(usd_per_hour=0.0, source="your own machine", as_of=now),
        shared_storage=None,
        nodes=tuple(
            Node(
                name=f"node-{rank}",
                provider_id=f"{folder.name}-{rank}",
                rank=rank,
                public=Endpoint(host="127.0.0.1", port=20000 + rank),
                private=Endpoint(host="127.0.0.1", port=20000 + rank),
                user="nobody",
                host_key=f"ssh-ed25519 KEY{rank}",
                work_dir=str(folder / f"node-{rank}"),
                processes=processes_per_node,
                cpu_threads=2,
            )
            for rank in range(nodes)
        ),
    )
