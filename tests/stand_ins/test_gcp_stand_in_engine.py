"""The stand-in's plug-in under the real engine: the unmodified pulumi_gcp from nothing to a stack and back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from infra.errors import EngineError
from infra.pulumi_engine import environment, find_pulumi
from tests.stand_ins.gcp import arguments
from tests.stand_ins.gcp.client import StandIn
from tests.stand_ins.gcp.fixtures import engine_environment, gcp, gcp_key, gcp_plugin
from tests.stand_ins.gcp.kinds import KINDS

__all__ = ["gcp", "gcp_key", "gcp_plugin"]

ROOT = Path(__file__).resolve().parents[2]


class Project:
    """A Pulumi project of its own with its own state, on the engine that `make setup` built."""

    def __init__(self, folder: Path, gcp: StandIn, plugin: Path, program: str) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "Pulumi.yaml").write_text("name: trial\nruntime: {name: python, options: {virtualenv: .venv}}\n")
        (folder / ".venv").symlink_to(sys.prefix)
        (folder / "passphrase").write_text("not a secret")
        (folder / "state").mkdir()
        (folder / "__main__.py").write_text(program)
        self.environment = engine_environment(gcp, plugin, environment(ROOT)) | {
            "PULUMI_BACKEND_URL": f"file://{folder}/state",
            "PULUMI_CONFIG_PASSPHRASE_FILE": str(folder / "passphrase"),
            "PULUMI_HOME": str(folder / "home"),
        }
        self.pulumi("stack", "init", "dev")

    def pulumi(self, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [find_pulumi(ROOT), *arguments, "--non-interactive"],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        said = done.stdout + done.stderr
        assert (done.returncode != 0) == (code != 0), said
        return said


@pytest.fixture(autouse=True)
def _engine() -> None:
    try:
        find_pulumi(ROOT)
    except EngineError as error:
        pytest.skip(str(error))


@pytest.mark.end_to_end
def test_a_stack_of_the_real_sdk_lives_changes_and_goes(gcp: StandIn, gcp_plugin: Path, tmp_path: Path) -> None:
    program = (ROOT / "tests/stand_ins/gcp/example_program.py").read_text()
    project = Project(tmp_path / "project", gcp, gcp_plugin, program)

    project.pulumi("preview")
    assert gcp.leftovers() == []
    project.pulumi("up", "--yes", "--skip-preview")
    outputs = json.loads(project.pulumi("stack", "output", "--json"))
    assert outputs == {"public": "203.0.113.2", "private": "10.10.0.2"}
    (head,) = [path for path in gcp.leftovers() if "/instances/head-" in path and "/zones/" in path]
    head = head.partition(f"/{gcp.env['GOOGLE_PROJECT']}/")[2]
    assert gcp.resource(head)["labels"] == {"stack": "trial", "role": "head", "goog-pulumi-provisioned": "true"}

    project.pulumi("config", "set", "role", "first")
    project.pulumi("config", "set", "from", "198.51.100.8/32")
    changed = project.pulumi("up", "--yes", "--skip-preview")
    assert "2 updated" in changed
    assert "replaced" not in changed
    assert gcp.resource(head)["labels"]["role"] == "first"
    assert "unchanged" in project.pulumi("up", "--yes", "--skip-preview", "--expect-no-changes")

    gcp.let_time_pass(3600)  # maxRunDuration ends the machine behind Pulumi's back
    assert "1 deleted" in project.pulumi("refresh", "--yes", "--skip-preview")

    gcp.keep_in_use("compute.networks.delete", times=2)  # fewer than the plug-in's attempts
    project.pulumi("destroy", "--yes", "--skip-preview")
    assert gcp.leftovers() == []
    assert [call["outcome"] for call in gcp.calls("compute.networks.delete")] == [400, 400, 200]


@pytest.mark.end_to_end
def test_wrong_arguments_and_a_network_in_use_for_ever_are_told(gcp: StandIn, gcp_plugin: Path, tmp_path: Path) -> None:
    program = (
        "import pulumi\n"
        "from pulumi_gcp import compute\n"
        "net = compute.Network('net', auto_create_subnetworks=False)\n"
        "if pulumi.Config().get('wrong'):\n"
        "    compute.Firewall('wrong', network=net.id, allows=[{'ports': ['22']}], priority='high')\n"
    )
    project = Project(tmp_path / "project", gcp, gcp_plugin, program)
    project.pulumi("config", "set", "wrong", "yes")
    said = project.pulumi("preview", code=1)
    assert "allows[0].protocol" in said
    assert "expected int, got 'high'" in said
    assert gcp.calls() == []

    project.pulumi("config", "rm", "wrong")
    project.pulumi("up", "--yes", "--skip-preview")
    gcp.keep_in_use("compute.networks.delete", times=None)
    assert "resourceInUseByAnotherResource" in project.pulumi("destroy", "--yes", "--skip-preview", code=1)
    gcp.clear_failures()
    project.pulumi("destroy", "--yes", "--skip-preview")
    assert gcp.leftovers() == []


@pytest.mark.parametrize("token", KINDS)
def test_each_served_type_is_one_of_the_sdk(token: str) -> None:
    assert arguments.of(token).outputs


def test_arguments_are_judged_at_any_depth() -> None:
    inputs = {
        "bootDisk": {"initializeParams": {"imge": "x", "size": "20"}},
        "machineType": 3,
        "networkInterfaces": [{"accessConfigs": [{"natIP": "1.2.3.4"}]}],
        "colour": "red",
    }
    assert {where for where, _ in arguments.failures("gcp:compute/instance:Instance", inputs)} == {
        "bootDisk.initializeParams.imge",
        "bootDisk.initializeParams.size",
        "machineType",
        "networkInterfaces[0].accessConfigs[0].natIP",
        "colour",
    }
