"""Our language host under the real engine, in a project whose path has blanks and letters beyond ASCII."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infra.errors import EngineError
from infra.pulumi_engine import environment, find_pulumi, initialise, install, is_initialised
from infra.pulumi_engine.go_modules import GoModules
from infra.pulumi_engine.layout import backend_folder, passphrase_file
from infra.pulumi_engine.sources import OfficialInstaller, OnPath

SOURCES = [GoModules(), OnPath(), OfficialInstaller()]
pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(not any(source.find() for source in SOURCES), reason="no Pulumi engine; `make setup` gets one"),
]
THING = """
import os
from pulumi.dynamic import CreateResult, Resource, ResourceProvider

class Provider(ResourceProvider):
    def create(self, props):
        return CreateResult("thing-1", {**props, "made_in": os.getcwd()})

class Thing(Resource):
    def __init__(self, name, colour):
        super().__init__(Provider(), name, {"colour": colour, "made_in": None})
"""
DEADLINE_S = 60


class Project:
    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "stacks").mkdir(parents=True)
        (root / ".venv").symlink_to(sys.prefix)
        (root / "Pulumi.yaml").write_text(
            "name: trial\nruntime: {name: python, options: {virtualenv: .venv}}\nstackConfigDir: stacks\n"
        )
        (root / "thing.py").write_text(THING)
        self.stack_file.write_text("# kept\nconfig:\n  trial:size: {nodes: 2}\n")
        install(root, report=str, sources=SOURCES)

    @property
    def stack_file(self) -> Path:
        return self.root / "stacks/Pulumi.local.yaml"

    def start(self, *arguments: str, program: str) -> subprocess.Popen[str]:
        (self.root / "__main__.py").write_text(program, encoding="utf-8")
        return subprocess.Popen(
            [find_pulumi(self.root), *arguments, "--non-interactive"],
            cwd=self.root,
            env=environment(self.root),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def up(self, program: str) -> tuple[int, str]:
        process = self.start("up", "--yes", "--skip-preview", program=program)
        output, _ = process.communicate(timeout=DEADLINE_S)
        return process.returncode, output

    def pulumi(self, *arguments: str, given: str = "") -> str:
        done = subprocess.run(
            [find_pulumi(self.root), *arguments, "--non-interactive"],
            cwd=self.root,
            env=environment(self.root),
            input=given,
            capture_output=True,
            text=True,
            check=True,
            timeout=DEADLINE_S,
        )
        return done.stdout

    def outputs(self) -> dict[str, object]:
        result: dict[str, object] = json.loads(self.pulumi("stack", "output", "--json"))
        return result


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path / "mein Projekt é#1 %20")
    initialise(project.root)
    return project


def wait_until(condition: object, what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_program_with_a_dynamic_resource_of_a_module_goes_up_and_down(project: Project) -> None:
    code, said = project.up(
        "import os, pulumi, thing\n"
        "pulumi.export('made_in', thing.Thing('a', 'grün').made_in)\n"
        "pulumi.export('cwd', os.getcwd())\n"
        "pulumi.export('size', pulumi.Config('trial').require_object('size'))\n"
    )
    assert code == 0, said
    assert project.outputs() == {"made_in": str(project.root), "cwd": str(project.root), "size": {"nodes": 2}}
    assert "warning" not in said
    assert "2 deleted" in project.pulumi("destroy", "--yes", "--skip-preview")
    assert project.stack_file.read_text().startswith("# kept\n")


def test_a_program_that_raises_is_told_once_and_by_its_own_lines(project: Project) -> None:
    code, said = project.up("raise ValueError('böse')\n")
    assert code != 0
    report = said[said.index("Diagnostics:") :]
    assert report.count("ValueError: böse") == 1
    assert "language_host" not in report
    assert "exit code" not in report


def test_a_program_that_exits_by_itself_is_reported_with_its_code(project: Project) -> None:
    code, said = project.up("import sys; sys.exit(7)\n")
    assert code != 0
    assert "exit code 7" in said


def test_secrets_reach_the_program_and_neither_its_arguments_nor_the_state(project: Project) -> None:
    project.pulumi("config", "set", "--secret", "token", given="xyzzy-plugh")
    code, said = project.up(
        "import sys, pulumi\n"
        "config = pulumi.Config()\n"
        "pulumi.export('token', config.require_secret('token'))\n"
        "pulumi.export('in_arguments', 'xyzzy' in ' '.join(sys.orig_argv))\n"
        "pulumi.export('arrived', config.require('token') == 'xyzzy-plugh')\n"
    )
    assert code == 0, said
    outputs = project.outputs()
    assert (outputs["in_arguments"], outputs["arrived"], outputs["token"]) == (False, True, "[secret]")
    kept = [path for path in [project.stack_file, *backend_folder(project.root).rglob("*")] if path.is_file()]
    assert not [path for path in kept if b"xyzzy" in path.read_bytes()]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_program_ends_when_the_engine_is_interrupted_or_killed(project: Project, number: signal.Signals) -> None:
    pid_file = project.root / "pid"
    engine = project.start(
        "preview",
        program="import os, pathlib, time\n"
        "pathlib.Path('part').write_text(f'{os.getpid()} {os.getppid()}')\n"
        "os.rename('part', 'pid')\n"
        "time.sleep(600)\n",
    )
    try:
        wait_until(pid_file.exists, "the program has started")
        program, host = (int(part) for part in pid_file.read_text().split())
        engine.send_signal(number)
        wait_until(lambda: not alive(program) and not alive(host), "program and language host are gone")
        said, _ = engine.communicate(timeout=DEADLINE_S)
        assert engine.returncode != 0
        assert "Traceback" not in said
    finally:
        engine.kill()
        engine.wait()


def test_initialise_makes_a_private_passphrase_once_and_selects_the_stack(project: Project) -> None:
    made = passphrase_file(project.root).read_text()
    assert stat.S_IMODE(passphrase_file(project.root).stat().st_mode) == 0o600
    assert is_initialised(project.root)
    initialise(project.root)
    assert passphrase_file(project.root).read_text() == made
    assert project.pulumi("stack", "--show-name").strip() == "local"


def test_initialise_leaves_the_stack_that_the_user_selected(project: Project) -> None:
    project.pulumi("stack", "init", "other")
    initialise(project.root)
    assert project.pulumi("stack", "--show-name").strip() == "other"


def test_initialise_never_makes_a_new_passphrase_for_existing_stacks(project: Project) -> None:
    passphrase_file(project.root).unlink()
    with pytest.raises(EngineError, match=r"passphrase is gone, but there are stacks that it opens \(local\)"):
        initialise(project.root)
    assert not passphrase_file(project.root).exists()


def test_a_stack_file_with_the_salt_of_another_passphrase_can_be_used(project: Project, tmp_path: Path) -> None:
    assert "encryptionsalt" in project.stack_file.read_text()
    clone = Project(tmp_path / "clone")
    clone.stack_file.write_text(project.stack_file.read_text())
    initialise(clone.root)
    code, said = clone.up("import pulumi\n")
    assert code == 0, said


def test_initialise_outside_a_checkout_names_the_file(tmp_path: Path) -> None:
    project = Project(tmp_path / "p")
    (project.root / "Pulumi.yaml").unlink()
    with pytest.raises(EngineError, match=r"Pulumi\.yaml can't be read"):
        initialise(project.root)
    assert not is_initialised(project.root)
    assert not passphrase_file(project.root).exists()
