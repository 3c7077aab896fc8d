"""`make smoke-aws`: its steps in order, and that the destroying comes whatever fails; with programs that play along."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from infra.cluster import VERSION, Cluster, Endpoint, Node, Price
from infra.pulumi_engine.layout import write_shell_variables
from scripts import smoke
from scripts.smoke import Smoke, SmokeError

EXPIRES_AT = datetime(2026, 12, 3, 12, 10, tzinfo=UTC)
GPU = "GPU 0: NVIDIA A10G (UUID: GPU-1)"


def cluster() -> Cluster:
    return Cluster(
        version=VERSION,
        project="trainstack",
        stack="smoke-aws",
        provider="aws",
        region="us-east-1",
        zone="us-east-1a",
        created_at=datetime(2026, 12, 3, 12, tzinfo=UTC),
        expires_at=EXPIRES_AT,
        price=Price(usd_per_hour=2.0, source="a test", as_of=EXPIRES_AT),
        shared_storage=None,
        nodes=tuple(
            Node(
                name=f"node-{rank}",
                provider_id=f"i-{rank}",
                rank=rank,
                public=Endpoint(host="198.51.100.1") if rank == 0 else None,
                private=Endpoint(host=f"10.0.0.{rank + 1}"),
                user="trainstack",
                host_key=f"ssh-ed25519 AAAA{rank}",
                work_dir="/home/trainstack/trainstack",
                processes=1,
                cpu_threads=4,
                gpu_model="A10G",
                gpu_count=1,
            )
            for rank in (0, 1)
        ),
    )


class Checkout:
    """A folder whose `pulumi`, `fab` and Python write down what they were asked, and answer as told."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self._told = root, root / "told"
        (root / "stacks").mkdir()
        (root / "cluster.json").write_text(json.dumps(cluster().to_json()))
        bin_folder = root / ".trainstack" / "bin"
        bin_folder.mkdir(parents=True)
        (bin_folder / "pulumi-language-python").touch(mode=0o755)
        write_shell_variables(root)
        for name in ("pulumi", "fab", "python"):
            path = bin_folder / name
            path.write_text(f'#!/bin/sh\necho "{name} $*" >> "{self._told}"\n. "{root}/{name}.answers"\n')
            path.chmod(0o755)
        monkeypatch.setattr(smoke.sys, "executable", str(bin_folder / "python"))
        self.answer("pulumi", f'case "$*" in "stack output"*) cat "{root}/cluster.json" ;; esac')
        self.answer("python", "")
        self.answer_on_nodes()

    def answer(self, name: str, script: str) -> None:
        (self.root / f"{name}.answers").write_text(script + "\n")

    def answer_on_nodes(self, *, gpus: str = GPU, guard: str = "active", deadline: object = None) -> None:
        known = {
            "true": ":",
            "nvidia-smi": f"echo '{gpus}'",
            "systemctl": f"echo {guard}",
            "cat": f"echo {deadline or int(EXPIRES_AT.timestamp())}",
        }
        cases = "".join(f' *"-- {command}"*) {answer} ;;' for command, answer in known.items())
        self.answer("fab", f'case "$*" in{cases} esac')

    @property
    def asked(self) -> list[str]:
        """The commands that change something, in order."""
        lines = self._told.read_text().splitlines()
        return [" ".join(line.split()[:4]) for line in lines if not line.startswith(("fab", "pulumi stack output"))]

    def run(self) -> None:
        seconds = iter(range(0, 10**6, 60))
        Smoke(root=self.root, provider="aws", sleep=lambda _: None, clock=lambda: next(seconds)).run()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    return Checkout(tmp_path, monkeypatch)


ENDED = ["python -m infra.destroy --stack", "python -m infra.leftovers --stack"]
ALL = ["pulumi stack init smoke-aws", "pulumi preview --stack smoke-aws", "pulumi up --stack smoke-aws", *ENDED]


def test_two_cheap_machines_are_made_looked_at_and_destroyed(
    checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout.run()
    assert checkout.asked == ALL
    config = yaml.safe_load((checkout.root / "stacks" / "Pulumi.smoke-aws.yaml").read_text())
    spec = config["config"]["trainstack:cluster"]
    assert (spec["nodes"], spec["max_lifetime"], spec["max_hourly_usd"]) == (2, "10m", 4)
    said = capsys.readouterr().out
    assert [f"smoke: node-{rank}: {GPU}; the guard is armed" in said for rank in (0, 1)] == [True, True]


def test_a_stack_file_that_is_there_stays(checkout: Checkout) -> None:
    file = checkout.root / "stacks" / "Pulumi.smoke-aws.yaml"
    file.write_text("mine")
    checkout.run()
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("failing", "said", "asked"),
    [
        (
            lambda checkout: checkout.answer("pulumi", 'case "$*" in preview*) exit 255 ;; esac'),
            "`pulumi preview --stack smoke-aws --non-interactive` ended with 255",
            ALL[:2],
        ),
        (
            lambda checkout: checkout.answer("pulumi", 'case "$*" in up*) exit 255 ;; esac'),
            "`pulumi up --stack smoke-aws --yes --skip-preview --non-interactive` ended with 255",
            ALL,
        ),
        (
            lambda checkout: checkout.answer("fab", "echo refused >&2; exit 1"),
            "node-0 can't be reached over SSH: refused",
            ALL,
        ),
        (
            lambda checkout: checkout.answer_on_nodes(gpus=f"{GPU}\n{GPU}"),
            "node-0 has 2 GPU(s), 1 were promised",
            ALL,
        ),
        (
            lambda checkout: checkout.answer_on_nodes(guard="inactive"),
            f"node-0: the guard is inactive, its deadline {int(EXPIRES_AT.timestamp())}",
            ALL,
        ),
        (
            lambda checkout: checkout.answer_on_nodes(deadline=7),
            "node-0: the guard is active, its deadline 7",
            ALL,
        ),
    ],
)
def test_whatever_fails_after_the_preview_the_destroying_comes(
    checkout: Checkout, failing: Callable[[Checkout], None], said: str, asked: list[str]
) -> None:
    failing(checkout)
    with pytest.raises(SmokeError) as error:
        checkout.run()
    assert str(error.value).startswith(said)
    assert checkout.asked == asked


def test_the_first_cause_is_told_before_what_is_left(checkout: Checkout) -> None:
    checkout.answer_on_nodes(guard="inactive")
    checkout.answer("python", "exit 6")
    with pytest.raises(SmokeError, match=r"^node-0: the guard is inactive, .*; and then: `.*infra\.destroy.*with 6$"):
        checkout.run()
    assert checkout.asked == ALL[:-1]
