"""`make smoke-aws`, `make smoke-gcp`: the first thing to run with an account. Costs some cents, under a hard cap.

Two of the cheapest GPU machines for ten minutes: made, reached over SSH with verified host keys, asked for their GPU
and their guard, destroyed, and looked for. Whatever fails on the way, the destroying comes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from infra.errors import InfraError
from infra.pulumi_engine import environment
from infra.stack import project_root, read_cluster

SSH_DEADLINE_S = 300.0
_LIFETIME = "10m"
SPECS: dict[str, dict[str, object]] = {
    "aws": {"region": "us-east-1", "instance": "g5.xlarge", "disk_gib": 100, "max_hourly_usd": 4},
    "gcp": {"region": "us-central1", "instance": "g2-standard-4", "disk_gib": 100, "max_hourly_usd": 4},
}


class SmokeError(Exception):
    """What isn't as it should be; the sentence says what, where and what to do."""


@dataclass(frozen=True, kw_only=True)
class Smoke:
    """One run in checkout `root`."""

    root: Path
    provider: str
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    @property
    def stack(self) -> str:
        return f"smoke-{self.provider}"

    def run(self) -> None:
        """Raises SmokeError; in any case nothing is left, or the error of `make destroy` says what."""
        file = self.root / "stacks" / f"Pulumi.{self.stack}.yaml"
        spec = {"provider": self.provider, "nodes": 2, "max_lifetime": _LIFETIME, **SPECS[self.provider]}
        if not file.exists():
            file.write_text(yaml.safe_dump({"config": {"trainstack:cluster": spec}}, sort_keys=False))
        # Made and not selected: the next bare `fab train` isn't to mean it. There already: fine.
        self._command(["pulumi", "stack", "init", self.stack, "--no-select", "--non-interactive"], is_shown=False)
        self._told("pulumi", "preview", "--stack", self.stack, "--non-interactive")  # makes nothing
        failures = []
        for steps in (self._made_and_looked_at, self._destroyed):
            try:
                steps()
            except (SmokeError, InfraError) as error:
                failures.append(str(error))
        if failures:
            raise SmokeError("; and then: ".join(failures))

    def _made_and_looked_at(self) -> None:
        self._told("pulumi", "up", "--stack", self.stack, "--yes", "--skip-preview", "--non-interactive")
        self._look()

    def _destroyed(self) -> None:
        self._told(sys.executable, "-m", "infra.destroy", "--stack", self.stack)
        self._told(sys.executable, "-m", "infra.leftovers", "--stack", self.stack)

    def _look(self) -> None:
        cluster = read_cluster(self.root, self.stack)
        end = self.clock() + SSH_DEADLINE_S
        for node in cluster.nodes:
            while (done := self._on(node.name, "true")).returncode != 0:
                if self.clock() >= end:
                    raise SmokeError(f"{node.name} can't be reached over SSH: {done.stderr.strip()[-300:]}")
                self.sleep(5)
            gpus = self._on(node.name, "nvidia-smi", "-L").stdout.splitlines()
            if len(gpus) != node.gpu_count:
                raise SmokeError(f"{node.name} has {len(gpus)} GPU(s), {node.gpu_count} were promised: {gpus}")
            armed = self._on(node.name, "systemctl", "is-active", "trainstack-guard.timer").stdout.strip()
            deadline = self._on(node.name, "cat", "/etc/trainstack/deadline").stdout.strip()
            if armed != "active" or deadline != str(int(cluster.expires_at.timestamp())):
                raise SmokeError(f"{node.name}: the guard is {armed or 'absent'}, its deadline {deadline or 'absent'}")
            print(f"smoke: {node.name}: {gpus[0]}; the guard is armed", flush=True)

    def _on(self, node: str, *command: str) -> subprocess.CompletedProcess[str]:
        return self._command(["fab", "ssh", "--stack", self.stack, "--node", node, "--", *command], is_shown=False)

    def _told(self, *argv: str) -> None:
        print(f"smoke: {' '.join(argv)}", flush=True)
        done = self._command(argv, is_shown=True)
        if done.returncode != 0:
            raise SmokeError(f"`{' '.join(argv)}` ended with {done.returncode}")

    def _command(self, argv: Sequence[str], *, is_shown: bool) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            cwd=self.root,
            env=environment(self.root),
            stdin=subprocess.DEVNULL,
            stdout=None if is_shown else subprocess.PIPE,
            stderr=None if is_shown else subprocess.PIPE,
            text=True,
            check=False,
        )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.smoke",
        description="Two of the cheapest GPU machines for ten minutes: made, looked at, destroyed. Costs money.",
        epilog="example: python -m scripts.smoke aws",
    )
    parser.add_argument("provider", choices=sorted(SPECS))
    try:
        Smoke(root=project_root(), provider=parser.parse_args(arguments).provider).run()
    except (SmokeError, InfraError) as error:
        print(f"smoke: FAILED: {error}", file=sys.stderr)
        return 1
    print("smoke: passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
