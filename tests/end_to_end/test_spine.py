"""The whole way in a checkout of its own: the real engine, real sshd's and torchrun, typed as the README shows."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.end_to_end


class Checkout:
    """A copy of the project in a path with a blank and an umlaut, set up on the environment that is already here."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def shell(self, line: str, *, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run `line` in bash after `source ./activate`, without a terminal; checks the exit code unless it is None."""
        done = subprocess.run(
            ["bash", "-c", f"source ./activate && {line}"],
            cwd=self.path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=600,
            check=False,
        )
        assert code is None or done.returncode == code, f"{line}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    path = tmp_path_factory.mktemp("spine") / "mein träning stack"
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in files.stdout.decode().split("\0"):
        source = ROOT / name
        if name and source.is_file():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, path / name)
    here = Checkout(path)
    subprocess.run(["make", "setup"], cwd=path, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=900)
    yield here
    subprocess.run(
        ["make", "destroy"], cwd=path, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=300
    )
    shutil.rmtree(path, ignore_errors=True)


def test_before_the_first_up_each_command_says_what_to_do(checkout: Checkout) -> None:
    for line in ("fab bootstrap", "fab train", "fab ssh --node node-0"):
        done = checkout.shell(line, code=3)
        assert "pulumi up" in done.stderr
        assert "Traceback" not in done.stderr
    checkout.shell("fab leftovers")
    assert "nothing" in checkout.shell("python -m infra.destroy --stack local").stdout
    assert "no stack lcoal" in checkout.shell("python -m infra.destroy --stack lcoal", code=2).stderr


def test_an_engine_killed_in_the_middle_of_up_leaves_nothing_that_destroy_does_not_find(checkout: Checkout) -> None:
    engine = subprocess.Popen(
        ["bash", "-c", "source ./activate && exec pulumi up --yes --skip-preview --non-interactive"],
        cwd=checkout.path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    for line in engine.stdout or ():
        if "LocalNode" in line and "creating" in line:
            break
    os.killpg(engine.pid, signal.SIGKILL)
    engine.communicate()
    checkout.shell("python -m infra.destroy --stack local")
    checkout.shell("fab leftovers")
    # Nor a process of the engine's: its provider ends within a second of it, and destroy took longer than that.
    assert str(checkout.path) not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout


def test_a_cluster_comes_up_trains_stops_resumes_and_leaves_nothing(checkout: Checkout) -> None:
    checkout.shell("pulumi preview --non-interactive")
    checkout.shell("pulumi up --yes --skip-preview --non-interactive")
    before = json.loads(checkout.shell("pulumi stack output cluster --json").stdout)
    again = checkout.shell("pulumi up --yes --skip-preview --suppress-outputs --non-interactive").stdout
    assert "unchanged" in again
    assert " created" not in again
    assert json.loads(checkout.shell("pulumi stack output cluster --json").stdout) == before

    assert "fab bootstrap" in checkout.shell("fab train", code=3).stderr
    checkout.shell("fab bootstrap")
    loop = "printf 'node-0\\nnode-1\\n' | while read node; do fab ssh --node $node -- hostname; done"
    said = checkout.shell(loop).stdout.split()
    assert len(said) == 2  # the first one left the second line to the loop
    names = set(said)
    assert len(names) == (2 if os.geteuid() == 0 else 1)

    recipe = "trainer/recipes/smoke.yaml"
    finished = checkout.shell(f"fab train --recipe {recipe} --strategy hsdp")
    assert "finished" in finished.stdout
    status = checkout.shell("fab status").stdout
    assert "finished" in status
    assert checkout.shell("fab logs").stdout.strip()
    assert "nothing to stop" in checkout.shell("fab stop").stdout

    (checkout.path / "exits_3.py").write_text(
        "import os, sys\nprint('here')\nsys.exit(3 if os.environ['RANK'] == '3' else 0)\n"
    )
    failed = checkout.shell("fab train --script exits_3.py -- --some 'thing with blanks'", code=1)
    assert "rank 3" in failed.stdout + failed.stderr
    assert "node-1" in failed.stdout + failed.stderr

    checkout.shell("python -m infra.destroy --stack local")
    checkout.shell("fab leftovers")
    checkout.shell("python -m infra.destroy --stack local")
