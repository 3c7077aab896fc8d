"""A second judge: what the program declares, put into Terraform's AWS provider, which pulumi-aws is made from.

Runs where `terraform` and its AWS provider are on the machine (TRAINSTACK_TERRAFORM_PLUGINS, or Terraform's own
folders); skipped elsewhere. The provider found here is older than the one behind pulumi_aws 7, so it judges arguments
and enumerations and not what came since. The gang's RunInstances is judged as the launch template of the same content.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from infra.providers.aws import plan, resources
from infra.providers.aws.machines import AwsMachines
from infra.providers.base import Deployment
from infra.spec import ClusterSpec
from tests.infra import declaring
from tests.infra.aws.asking import asked, aws_cloud, order
from tests.infra.declaring import Made

ZONES = ["us-east-1a", "us-east-1b"]
FOLDERS = (
    os.environ.get("TRAINSTACK_TERRAFORM_PLUGINS", ""),
    "~/.terraform.d/plugins",
    "~/.local/share/terraform/plugins",
    "/usr/local/share/terraform/plugins",
    "/usr/share/terraform/plugins",
)
# Pulumi's name, where Terraform's isn't aws_ and the snake case of it.
NAMES = {
    "aws:ec2/eip:Eip": "aws_eip",
    "aws:ec2/eipAssociation:EipAssociation": "aws_eip_association",
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": "aws_vpc_security_group_ingress_rule",
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": "aws_vpc_security_group_egress_rule",
    "aws:fsx/lustreFileSystem:LustreFileSystem": "aws_fsx_lustre_file_system",
    "aws:efs/fileSystem:FileSystem": "aws_efs_file_system",
    "aws:efs/mountTarget:MountTarget": "aws_efs_mount_target",
    "aws:s3/bucket:Bucket": "aws_s3_bucket",
    "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock": "aws_s3_bucket_public_access_block",
    "aws:s3/bucketPolicy:BucketPolicy": "aws_s3_bucket_policy",
    "aws:iam/role:Role": "aws_iam_role",
    "aws:iam/rolePolicy:RolePolicy": "aws_iam_role_policy",
    "aws:iam/instanceProfile:InstanceProfile": "aws_iam_instance_profile",
}
LISTS = {"aws_fsx_lustre_file_system": ["subnet_ids"]}  # one item there is a plain value in Pulumi
NAMED_BY_PULUMI = {"aws_placement_group"}  # its own name with random digits, which mocks don't make


def _plugins() -> Path | None:
    for folder in filter(None, FOLDERS):
        path = Path(folder).expanduser()
        if any(path.glob("registry.terraform.io/hashicorp/aws/*/*")):
            return path
    return None


pytestmark = [
    pytest.mark.skipif(
        shutil.which("terraform") is None or _plugins() is None, reason="needs terraform and its AWS provider"
    ),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the SDK's own modules
]


@pytest.fixture
def zones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "standard_zones", lambda _: tuple(ZONES))
    monkeypatch.setattr(plan, "offering_zones", lambda *_: tuple(ZONES))


@pytest.mark.usefixtures("zones")
@pytest.mark.parametrize(
    "storage", [None, {"kind": "lustre", "size_gib": 2400}, {"kind": "nfs"}, {"kind": "bucket"}], ids=str
)
def test_terraform_finds_nothing_wrong_with_what_is_declared(
    mine: Deployment, tmp_path: Path, storage: dict[str, Any] | None
) -> None:
    declared = _declared(mine, asked(storage=storage, ssh_from=["203.0.113.7", "2001:db8::/32"]))
    assert len(declared) > 20
    assert _judged(tmp_path, _by_kind(declared)) == []


@pytest.mark.parametrize("instance", ["g5.xlarge", "p4d.24xlarge", "p5.48xlarge", "p6-b300.48xlarge"])
@pytest.mark.parametrize("market", ["on-demand", "spot"])
def test_terraform_finds_nothing_wrong_with_a_launch(
    mine: Deployment, tmp_path: Path, instance: str, market: str
) -> None:
    wish = {"region": "us-east-1", "instance": instance, "market": market, "disk_gib": 200, "security_group": "sg-1"}
    place = {"public_subnet": "subnet-1", "private_subnet": "subnet-2", "placement_group": "group"}
    pinned = {"image": "ami-0123456789abcdef0", "root_device": "/dev/sda1", "root_gib": 8}
    machines = AwsMachines(mine, wish=wish, places={ZONES[0]: place}, pinned=pinned)

    template = _template(machines.request(order("node-1", zone=ZONES[0])))

    assert _judged(tmp_path, {"aws_launch_template": {"node": template}}) == []


def test_terraform_finds_what_is_wrong(tmp_path: Path) -> None:
    subnet = {"vpc_id": "vpc-1", "cidr": "10.0.0.0/24"}
    group = {"name": "g", "strategy": "close"}
    wrong = {"aws_subnet": {"one": subnet}, "aws_placement_group": {"one": group}}
    said = " ".join(_judged(tmp_path, wrong))
    assert "cidr" in said
    assert "close" in said


def _declared(mine: Deployment, spec: ClusterSpec) -> list[Made]:
    cloud = aws_cloud()
    declaring.declared(cloud, mine, spec, resources.declare)
    return [each for each in cloud.made if each.typ.startswith("aws:")]


def _by_kind(declared: list[Made]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for each in declared:
        kind = NAMES.get(each.typ) or "aws_" + _snake(each.typ.rpartition(":")[2])
        arguments = {_snake(key): value for key, value in each.inputs.items() if value is not None}
        for key in LISTS.get(kind, []):
            arguments[key] = [arguments[key]]
        if kind in NAMED_BY_PULUMI:
            arguments.setdefault("name", each.name)
        found.setdefault(kind, {})[re.sub(r"[^a-zA-Z0-9_-]", "_", each.name)] = arguments
    return found


def _template(request: Mapping[str, Any]) -> dict[str, Any]:
    """RunInstances' parameters as aws_launch_template has them."""
    others = ("MinCount", "MaxCount", "ClientToken")
    named = {"instance_initiated_shutdown_behavior": request["InstanceInitiatedShutdownBehavior"]}
    for key, value in request.items():
        if key not in others:
            named[_snake(key)] = _snaked(value)
    for specification in named["tag_specifications"]:
        specification["tags"] = {tag["key"]: tag["value"] for tag in specification["tags"]}
    for interface in named["network_interfaces"]:
        interface["security_groups"] = interface.pop("groups")
    return named


def _snaked(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_snake(key): _snaked(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_snaked(each) for each in value]
    return value


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CLI_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("CHECKPOINT_DISABLE", "1")


def _judged(folder: Path, declared: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What `terraform validate` has against it."""
    main = {
        "terraform": {"required_providers": {"aws": {"source": "hashicorp/aws"}}},
        "provider": {"aws": {"region": "us-east-1"}},
        "resource": declared,
    }
    (folder / "main.tf.json").write_text(json.dumps(main))
    _terraform(folder, "init", f"-plugin-dir={_plugins()}", "-input=false")
    verdict = json.loads(_terraform(folder, "validate", "-json").stdout)
    found = [each for each in verdict["diagnostics"] if each["severity"] == "error"]
    return [f"{each['summary']} {each.get('detail', '')}" for each in found]


def _terraform(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["terraform", *arguments], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
