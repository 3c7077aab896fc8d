"""The stand-in's plug-in under the real engine: the unmodified pulumi_gcp from nothing to a stack and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from infra.pulumi_engine import environment
from tests.stand_ins import schema
from tests.stand_ins.gcp.client import StandIn
from tests.stand_ins.gcp.fixtures import engine_environment, gcp, gcp_key, gcp_plugin
from tests.stand_ins.gcp.kinds import KINDS
from tests.stand_ins.on_path import ROOT
from tests.stand_ins.projects import Project

__all__ = ["gcp", "gcp_key", "gcp_plugin"]


def project_of(folder: Path, gcp: StandIn, plugin: Path, program: str) -> Project:
    return Project(folder / "project", engine_environment(gcp, plugin, environment(ROOT)), program)


@pytest.mark.end_to_end
def test_a_stack_of_the_real_sdk_lives_changes_and_goes(gcp: StandIn, gcp_plugin: Path, tmp_path: Path) -> None:
    program = (ROOT / "tests/stand_ins/gcp/example_program.py").read_text()
    project = project_of(tmp_path, gcp, gcp_plugin, program)

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
    project = project_of(tmp_path, gcp, gcp_plugin, program)
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
    assert schema.of(token).outputs


def test_arguments_are_judged_at_any_depth() -> None:
    inputs = {
        "bootDisk": {"initializeParams": {"imge": "x", "size": "20"}},
        "machineType": 3,
        "networkInterfaces": [{"accessConfigs": [{"natIP": "1.2.3.4"}]}],
        "colour": "red",
    }
    assert {where for where, _ in schema.failures("gcp:compute/instance:Instance", inputs)} == {
        "bootDisk.initializeParams.imge",
        "bootDisk.initializeParams.size",
        "machineType",
        "networkInterfaces[0].accessConfigs[0].natIP",
        "colour",
    }
