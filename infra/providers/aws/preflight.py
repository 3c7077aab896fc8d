"""Whether AWS will give what is asked for: everything that is wrong, from its own APIs, before anything is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra import checks
from infra.errors import InfraError, SpecError
from infra.providers.aws import api, instances
from infra.providers.aws import plan as planning
from infra.providers.aws.instances import QUOTAS
from infra.providers.aws.machines import AwsMachines
from infra.providers.aws.plan import Plan

if TYPE_CHECKING:
    from infra.gang import Machine
    from infra.providers.base import Deployment
    from infra.spec import ClusterSpec

ADDRESSES = ("L-0263D0A3", "EC2-VPC Elastic IPs")
_FAMILY_LETTERS = {"P": ("p",), "G and VT": ("g", "vt")}
_LONGEST_TAG = 256


def problems(spec: ClusterSpec, deployment: Deployment) -> list[str]:
    """One sentence each; keys with their file. What can't be asked without credentials isn't asked."""
    file = f"stacks/{deployment.stack_file.name}"
    try:
        choice = planning.plan(spec)
    except SpecError as error:
        return [f"{file}, key trainstack:cluster.{line}" for line in str(error).splitlines()]
    if len(deployment.identity) > _LONGEST_TAG:
        return [f"the tag {deployment.identity!r} is longer than AWS's {_LONGEST_TAG}: take a shorter stack name"]
    try:
        api.ask("sts", choice.region, "get_caller_identity", where="AWS credentials")
    except InfraError as error:
        return [str(error)]
    machines = AwsMachines(deployment, wish={"region": choice.region}, places={}, pinned={})
    found: list[str] = []
    found += checks.asked(lambda: _strangers(deployment, choice))
    found += checks.asked(lambda: _zones(spec, choice, file))
    found += checks.asked(lambda: _image(spec, choice, file))
    found += checks.asked(lambda: _addresses(spec, choice, deployment))
    if spec.reservation is None:
        found += checks.asked(lambda: _quota(spec, choice, machines.find()))
    else:
        found += checks.asked(lambda: _reservation(spec, choice, machines.find(), file))
    return list(dict.fromkeys(found))


def _strangers(deployment: Deployment, choice: Plan) -> list[str]:
    """Machines of the same stack name by another checkout: `make destroy` would mistake one for the other."""
    foreign = [
        each["InstanceId"]
        for each in api.instances(choice.region, api.tagged(deployment))
        if each["State"]["Name"] != "terminated" and api.tags(each.get("Tags")).get(api.OWNER_TAG) != deployment.owner
    ]
    return checks.strangers(deployment, foreign, has="this AWS account has machines")


def _zones(spec: ClusterSpec, choice: Plan, file: str) -> list[str]:
    offering = planning.offering_zones(choice.region, choice.instance.name)
    what = f"{choice.instance.name} in {choice.region}"
    if not offering:
        key = "instance" if spec.instance else "gpus"
        return [f"{file}, key trainstack:cluster.{key}: AWS has no {what} at all: take another region or machine"]
    missing = [zone for zone in choice.zones or () if zone not in offering]
    if missing:
        return [
            f"{file}, key trainstack:cluster.zones: {', '.join(missing)} has no {choice.instance.name}: "
            f"take of {', '.join(offering)}, or remove the key"
        ]
    if not planning.zones_in_order(spec, choice):
        return [f"{file}, key trainstack:cluster.zones: none of them is open to this account and has {what}"]
    return []


def _image(spec: ClusterSpec, choice: Plan, file: str) -> list[str]:
    image = planning.image(choice.region, spec.image or "deep-learning")
    needed = planning.root_gib(image)
    if spec.disk_gib is not None and spec.disk_gib < needed:
        return [
            f"{file}, key trainstack:cluster.disk_gib is {spec.disk_gib}, and the image needs {needed}: take that "
            "or more"
        ]
    return []


def _quota(spec: ClusterSpec, choice: Plan, ours: list[Machine]) -> list[str]:
    """vCPUs needed against free, of this family and this pool. Our own that run aren't needed a second time."""
    family, pool = choice.instance.quota_family, "spot" if spec.market == "spot" else "on-demand"
    code, name = QUOTAS[family, pool]
    running = sum(1 for machine in ours if machine.lives)
    needed = max(0, spec.nodes - running) * choice.instance.vcpus
    allowed = _allowed(choice.region, code)
    free = allowed - _used(choice.region, family, pool)
    if needed <= max(0, free):  # a quota that was lowered below what runs is no reason to refuse nothing more
        return []
    other = "on-demand" if pool == "spot" else "spot"
    return [
        f"quota: {spec.nodes - running} × {choice.instance.name} need {needed} vCPUs of {name!r} ({code}, {pool}) in "
        f"{choice.region}, and {max(0, free)} of {allowed} are free: ask for {allowed - free + needed} under Service "
        f"Quotas in AWS's console (hours to days), or take another region, fewer nodes, or market: {other}, which has "
        f"a quota of its own ({QUOTAS[family, other][0]})"
    ]


def _addresses(spec: ClusterSpec, choice: Plan, deployment: Deployment) -> list[str]:
    """They are asked for last: without this look, machines would run and bill beside a head that nobody can reach."""
    there = list(api.pages("ec2", choice.region, "describe_addresses", "Addresses"))
    tags = [api.tags(address.get("Tags")) for address in there]
    mine = (deployment.identity, deployment.owner)
    ours = sum((each.get(api.IDENTITY_TAG), each.get(api.OWNER_TAG)) == mine for each in tags)
    needed = planning.addresses(spec) - ours
    code, name = ADDRESSES
    allowed = _allowed(choice.region, code)
    if needed <= max(0, allowed - len(there)):
        return []
    return [
        f"quota: {needed} public address(es) are needed, and {max(0, allowed - len(there))} of {allowed} of {name!r} "
        f"({code}) are free in {choice.region}: release some, or ask for {len(there) + needed} under Service Quotas in "
        "AWS's console"
    ]


def _allowed(region: str, code: str) -> int:
    """What this account was given, or what every account has when it never asked for more."""
    asked = {"ServiceCode": "ec2", "QuotaCode": code}
    try:
        answer = api.client("service-quotas", region).get_service_quota(**asked)
    except api.FAILURES as error:
        if api.code_of(error) != "NoSuchResourceException":
            raise api.translated(error, where=f"quota {code} in {region}") from None
        answer = api.ask("service-quotas", region, "get_aws_default_service_quota", **asked)
    return int(answer["Quota"]["Value"])


def _used(region: str, family: str, pool: str) -> int:
    states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    used = 0
    for each in api.instances(region, states):
        if each.get("InstanceLifecycle", "on-demand") == pool and _is_of(each["InstanceType"], family):
            used += _vcpus(each)
    return used


def _is_of(instance_type: str, family: str) -> bool:
    head = instance_type.partition(".")[0]
    letters = head[: next((place for place, letter in enumerate(head) if letter.isdigit()), len(head))]
    return letters in _FAMILY_LETTERS[family]


def _vcpus(described: dict[str, object]) -> int:
    known = instances.all_types().get(str(described["InstanceType"]))
    if known is not None:
        return known.vcpus
    options = described.get("CpuOptions")
    if isinstance(options, dict):
        return int(options.get("CoreCount", 1)) * int(options.get("ThreadsPerCore", 2))
    return 0


def _reservation(spec: ClusterSpec, choice: Plan, ours: list[Machine], file: str) -> list[str]:
    found = planning.reservation(choice.region, str(spec.reservation))
    where = f"{file}, key trainstack:cluster.reservation: {spec.reservation}"
    wrong = []
    if found["InstanceType"] != choice.instance.name:
        wrong.append(f"{where} is of {found['InstanceType']}, not of {choice.instance.name}: name one that fits")
    if found.get("State") not in ("active", "scheduled"):
        wrong.append(f"{where} is {found.get('State')}: name one that is active")
    elif found.get("State") == "scheduled":
        wrong.append(f"{where} begins {found.get('StartDate')}: run `pulumi up` then")
    if choice.zones is not None and found["AvailabilityZone"] not in choice.zones:
        wrong.append(f"{where} is in {found['AvailabilityZone']}, which zones leaves out: remove zones")
    needed = spec.nodes - sum(1 for machine in ours if machine.lives)
    free = int(found.get("AvailableInstanceCount", 0))
    if free < needed:
        wrong.append(f"{where} has {free} machines free, and {needed} are needed: ask for fewer nodes")
    return wrong
