"""A local stack for tests, driven in plain Python."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from infra import ssh_keys
from infra.providers.base import Deployment
from infra.providers.local import isolation, network, nodes, system
from infra.providers.local.isolation import Mode
from infra.providers.local.layout import Layout

MODES = [
    pytest.param(
        "namespace",
        marks=pytest.mark.skipif(isolation.choose()[0] != "namespace", reason="needs root and network namespaces"),
    ),
    "loopback",
]


class LocalStack:
    """A local stack driven without Pulumi, the way its resources do."""

    def __init__(self, root: Path, mode: Mode, *, nodes: int = 2, shared: bool = False) -> None:
        self.layout = Layout(Deployment(root=root, stack="Test.stack"))
        self.mode = mode
        self.count = nodes
        self.key = ssh_keys.make_pair(self.layout.deployment.key_folder / "id_ed25519", comment="test")
        network.prepare_folders(self.layout, nodes=nodes, shared=shared)
        self.subnet = network.create_hub(self.layout) if mode == "namespace" else ""

    def request(self, rank: int, *, lifetime_s: float = 300) -> nodes.NodeRequest:
        return nodes.NodeRequest(
            name=f"node-{rank}",
            rank=rank,
            nodes=self.count,
            mode=self.mode,
            subnet=self.subnet,
            public_key=self.key,
            expires_at=datetime.now(UTC) + timedelta(seconds=lifetime_s),
        )

    def create(self, rank: int, *, lifetime_s: float = 300) -> nodes.CreatedNode:
        return nodes.create(self.layout, self.request(rank, lifetime_s=lifetime_s))

    def ssh(self, node: nodes.CreatedNode, command: str) -> subprocess.CompletedProcess[str]:
        """The real client, with this node's host key and no other."""
        known = self.layout.deployment.root / "known_hosts"
        known.write_text(f"[{node.address}]:{node.port} {node.host_key}\n{node.address} {node.host_key}\n")
        key = self.layout.deployment.key_folder / "id_ed25519"
        options = [
            *("-F", "none", "-o", f'UserKnownHostsFile="{known}"', "-o", "StrictHostKeyChecking=yes"),
            *(
                "-o",
                "IdentitiesOnly=yes",
                "-o",
                "BatchMode=yes",
                "-o",
                "IdentityAgent=none",
                "-o",
                f'IdentityFile="{key}"',
            ),
        ]
        return subprocess.run(
            [
                "ssh",
                *(option.replace("%", "%%") for option in options),
                *("-p", str(node.port), f"{node.user}@{node.address}", command),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def guard_pid(self, rank: int) -> int:
        name = f"node-{rank}"
        return next(each.pid for each in system.processes(self.layout) if each.is_guard and each.node == name)

    def remove(self) -> None:
        nodes.end_processes(self.layout)
        network.remove_all(self.layout)
