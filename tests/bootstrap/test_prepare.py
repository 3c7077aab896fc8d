"""The steps on real nodes, with a lock file of one small package so that an environment takes no time."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bootstrap.code_tree import collect
from bootstrap.errors import DiskFull, HostKeyError, NotBootstrapped, StepError, UsageError
from bootstrap.fleet import Fleet
from bootstrap.prepare import bootstrap, ready, sync_code
from bootstrap.steps.base import Context, Facts
from bootstrap.steps.environment import Environment
from bootstrap.steps.reach import Reach
from infra.cluster import Cluster
from tests.bootstrap.servers import cluster_of, make_key, names

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def checkout(root: Path) -> Path:
    """A checkout with a trainer of two files and a lock of the smallest package of the real lock."""
    (root / "trainer" / "recipes").mkdir(parents=True)
    (root / "trainer" / "__main__.py").write_text("print('training')\n")
    (root / "trainer" / "recipes" / "demo.yaml").write_text("steps: 1\n")
    (root / "requirements").mkdir()
    entry = re.search(r"^markupsafe==.*?(?=^\w)", (CHECKOUT / "requirements" / "node.lock").read_text(), re.M | re.S)
    assert entry is not None
    (root / "requirements" / "node.lock").write_text(entry[0])
    return root


@pytest.fixture
def fleet(cluster: Cluster, checkout: Path) -> Iterator[Fleet]:
    with Fleet(cluster, root=checkout, connect_deadline_s=10) as fleet:
        yield fleet


def quiet(_: str) -> None:
    return


def test_a_bootstrap_makes_nodes_ready_and_a_second_one_finds_nothing_to_do(fleet: Fleet, checkout: Path) -> None:
    lines: list[str] = []
    with pytest.raises(NotBootstrapped, match=r"node-0, node-1: environment .*`fab bootstrap`"):
        ready(fleet, root=checkout)
    first = bootstrap(fleet, root=checkout, report=lines.append)
    assert first["node-1"].steps == {"reach": "fit", "environment": "applied", "code": "applied"}
    assert any(line.startswith("node-1 environment: ") for line in lines)
    prepared = ready(fleet, root=checkout)
    subprocess.run([prepared.python["node-0"], "-c", "import markupsafe"], check=True)
    lines.clear()
    again = bootstrap(fleet, root=checkout, report=lines.append)
    assert set(again["node-0"].steps.values()) == {"fit"}
    assert lines == []


def test_a_dry_run_changes_nothing(fleet: Fleet, checkout: Path) -> None:
    found = bootstrap(fleet, root=checkout, dry_run=True, report=quiet)
    assert found["node-0"].steps == {"reach": "fit", "environment": "to do", "code": "to do"}
    assert not Path(fleet.cluster.head.work_dir).exists()


def test_only_the_named_steps_run(fleet: Fleet, checkout: Path) -> None:
    assert bootstrap(fleet, root=checkout, only=["code"], report=quiet)["node-0"].steps == {"code": "applied"}
    with pytest.raises(UsageError, match=r"--only codee: .* reach, environment, code"):
        bootstrap(fleet, root=checkout, only=["codee"], report=quiet)


def test_a_half_made_environment_is_made_again(fleet: Fleet, checkout: Path) -> None:
    bootstrap(fleet, root=checkout, report=quiet)
    environment = Path(ready(fleet, root=checkout).python["node-1"]).parent.parent
    (environment / "trainstack.json").unlink()
    (environment / "bin" / "python").unlink()
    with pytest.raises(NotBootstrapped, match="node-1"):
        ready(fleet, root=checkout)
    again = bootstrap(fleet, root=checkout, report=quiet)
    assert [again[name].steps["environment"] for name in ("node-0", "node-1")] == ["fit", "applied"]
    subprocess.run([ready(fleet, root=checkout).python["node-1"], "-c", "import markupsafe"], check=True)


def test_a_wrong_hash_fails_the_step_by_name_and_leaves_no_ready_node(fleet: Fleet, checkout: Path) -> None:
    lock = checkout / "requirements" / "node.lock"
    lock.write_text(re.sub(r"sha256:\w+", "sha256:" + "0" * 64, lock.read_text()))
    with pytest.raises(StepError, match=r"step environment: (?s:.*)markupsafe") as failed:
        bootstrap(
            Fleet(cluster_of(fleet.cluster.head), root=checkout), root=checkout, only=["environment"], report=quiet
        )
    assert "node-0" in str(failed.value)
    with pytest.raises(NotBootstrapped):
        ready(fleet, root=checkout)


def test_the_good_nodes_are_finished_when_one_fails(cluster: Cluster, checkout: Path, tmp_path: Path) -> None:
    stranger = dataclasses.replace(cluster.nodes[1], host_key=make_key(tmp_path / "other" / "key"))
    cluster = cluster.replace(nodes=(cluster.head, stranger))
    with Fleet(cluster, root=checkout) as fleet, pytest.raises(HostKeyError, match="node-1"):
        bootstrap(fleet, root=checkout, report=quiet)
    assert (Path(cluster.head.work_dir) / "code").is_dir()


def test_the_same_code_is_one_folder_and_changed_code_another(fleet: Fleet, checkout: Path) -> None:
    first, second = sync_code(fleet, root=checkout), sync_code(fleet, root=checkout)
    assert first == second
    folder = Path(first.path["node-1"])
    assert (folder / "trainer" / "recipes" / "demo.yaml").read_text() == "steps: 1\n"
    assert (folder / "trainer" / "__main__.py").stat().st_mode & 0o777 == 0o444
    (checkout / "trainer" / "__main__.py").write_text("print('more')\n")
    third = sync_code(fleet, root=checkout)
    assert third.digest != first.digest
    assert names(folder.parent) == sorted([first.digest, third.digest])


def test_the_users_own_files_go_along(fleet: Fleet, checkout: Path, tmp_path: Path) -> None:
    scripts = tmp_path / "mein skript ö"
    (scripts / ".git").mkdir(parents=True)
    (scripts / "__pycache__").mkdir()
    (scripts / "train.py").write_text("1\n")
    (scripts / "run.sh").write_text("#!/bin/sh\n")
    (scripts / "run.sh").chmod(0o755)
    (scripts / "dangling").symlink_to("nowhere")
    (scripts / "loop").symlink_to(scripts)
    (checkout / "mine.yaml").write_text("x: 1\n")
    code = sync_code(fleet, root=checkout, extra=[scripts, checkout / "mine.yaml"])
    folder = Path(code.path["node-0"])
    assert names(folder) == ["mein skript ö", "mine.yaml", "trainer"]
    assert names(folder / "mein skript ö") == ["run.sh", "train.py"]
    assert os.access(folder / "mein skript ö" / "run.sh", os.X_OK)


def test_two_files_that_want_one_place_are_refused(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__main__.py").write_text("other\n")
    with pytest.raises(UsageError, match=r"trainer/__main__.py is taken"):
        collect(checkout, [tmp_path / "trainer"])
    assert collect(checkout, [checkout / "trainer"]) == collect(checkout)
    with pytest.raises(UsageError, match="isn't there"):
        collect(checkout, [tmp_path / "nothing"])


def test_a_code_copy_that_was_cut_leaves_no_folder(fleet: Fleet, checkout: Path) -> None:
    from bootstrap.steps.code import send_code

    tree = collect(checkout)
    whole = tree.archive
    vars(tree)["archive"] = whole[: len(whole) // 2]
    with pytest.raises(StepError, match=r"node-0, step code, .*cut"):
        send_code(fleet.shell("node-0"), Context(lock=b"", code=tree))
    assert names(Path(fleet.cluster.head.work_dir) / "code") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_on_one_node_is_named_and_the_next_copy_is_whole(fleet: Fleet, checkout: Path) -> None:
    (checkout / "trainer" / "big").write_bytes(os.urandom(3 << 20))
    disk = Path(fleet.cluster.nodes[1].work_dir)
    disk.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], check=True)
    try:
        with pytest.raises(DiskFull, match=f"disk full on node-1:{disk}/code/"):
            sync_code(fleet, root=checkout)
        assert names(disk / "code") == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    code = sync_code(fleet, root=checkout)
    assert len((Path(code.path["node-1"]) / "trainer" / "big").read_bytes()) == 3 << 20


# --- the decisions, without a node

FACTS = Facts(
    now=0.0,
    python="/usr/bin/python3",
    python_version=(3, 11),
    system="Linux x86_64",
    free_gib=100.0,
    writable_parent="/",
    environment_exists=False,
    environment_complete=False,
    code_complete=False,
    uv=None,
)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"python_version": (3, 10)}, "newest Python is 3.10, needed is 3.11"),
        ({"writable_parent": None}, "may not write at"),
        ({"free_gib": 0.2}, "disk full on node-0"),
    ],
)
def test_what_stands_in_the_way_is_said(cluster: Cluster, checkout: Path, change: dict[str, object], said: str) -> None:
    context = Context(lock=b"", code=collect(checkout))
    facts = dataclasses.replace(FACTS, **change)  # type: ignore[arg-type]
    verdict = Reach().check(cluster.head, facts, context)
    assert verdict.why is not None
    assert said in verdict.why


def test_a_wrong_clock_is_reported_and_does_not_stop_the_work(cluster: Cluster, checkout: Path) -> None:
    context = Context(lock=b"", code=collect(checkout))
    verdict = Reach().check(cluster.head, dataclasses.replace(FACTS, clock_skew_s=-600.0), context)
    assert verdict.fit
    assert "clock 600 s behind this machine's" in verdict.note


def test_a_clock_that_may_be_why_a_download_fails_is_named_with_the_failure(fleet: Fleet, checkout: Path) -> None:
    context = Context(lock=b"no-such-package==1 --hash=sha256:" + b"0" * 64, code=collect(checkout))
    facts = dataclasses.replace(FACTS, python="python3", uv="uv", clock_skew_s=-172800.0)
    with pytest.raises(
        StepError, match=r"node-0, step environment \(clock 172800 s behind this machine's\): (?s:.*)no-such"
    ):
        Environment().apply(fleet.shell("node-0"), facts, context)


def test_a_node_of_another_kind_without_uv_is_told_how_to_get_it(fleet: Fleet, checkout: Path) -> None:
    context = Context(lock=b"", code=collect(checkout))
    facts = dataclasses.replace(FACTS, system="Linux riscv64")
    with pytest.raises(StepError, match=r"node-0, step environment: there is no uv .*riscv64: install uv"):
        Environment().apply(fleet.shell("node-0"), facts, context)


def test_without_uv_on_the_node_ours_is_brought(fleet: Fleet, checkout: Path) -> None:
    import platform

    context = Context(lock=(checkout / "requirements" / "node.lock").read_bytes(), code=collect(checkout))
    facts = dataclasses.replace(FACTS, system=f"{platform.system()} {platform.machine()}", python="python3")
    Environment().apply(fleet.shell("node-0"), facts, context)
    assert names(Path(fleet.cluster.head.work_dir) / "bin") == ["uv"]
    assert ready(Fleet(cluster_of(fleet.cluster.head), root=checkout), root=checkout)
