"""From the stack file to what is asked of AWS: region, machine type, image. What needs no API is decided here."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infra import checks, gpus
from infra.errors import ProviderError, SpecError
from infra.providers.aws import api, instances

if TYPE_CHECKING:
    from infra.spec import ClusterSpec

KEYS = (
    *("provider", "nodes", "processes_per_node", "max_lifetime", "max_hourly_usd", "region", "zones", "gpus"),
    *("instance", "market", "reservation", "image", "disk_gib", "ssh_from", "egress", "storage"),
)
MAX_NODES = 64
LARGEST_DISK_GIB = 16384
DISK_GIB = 200
"""Room for the image (70 GiB), the environment (10 GiB) and checkpoints of small models."""
_REGION = re.compile(r"[a-z]{2,4}(?:-[a-z]+)+-\d+")
_ZONE = re.compile(r"([a-z]{2,4}(?:-[a-z]+)+-\d+)(?:-[a-z]+-\d+)?[a-z]")
_DEEP_LEARNING = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
# Names for the images that most people want; anything else is an AMI id or the path of an SSM parameter.
IMAGES = {
    "deep-learning": _DEEP_LEARNING,
    "deep-learning-pytorch": _DEEP_LEARNING.replace("base-oss-nvidia-driver-gpu", "oss-nvidia-driver-gpu-pytorch-2.7"),
    "deep-learning-amazon-linux": _DEEP_LEARNING.replace("ubuntu-22.04", "amazon-linux-2023"),
    "ubuntu-22.04": "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id",
    "ubuntu-24.04": "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id",
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the stack file comes to."""

    region: str
    instance: instances.InstanceType
    zones: tuple[str, ...] | None
    """As the stack file orders them; None leaves them to what the region offers."""


def plan(spec: ClusterSpec) -> Plan:
    """Raises SpecError with everything that is wrong, a sentence a line; each begins with its key."""
    problems, region, instance = [], None, None
    try:
        region = region_of(spec)
    except SpecError as error:
        problems.append(str(error))
    try:
        instance = gpus.wanted(spec, instances.all_types(), provider="AWS", example="p5.48xlarge")[0]
    except SpecError as error:
        problems.append(str(error))
    problems += _limits(spec, instance)
    if problems or region is None or instance is None:
        raise SpecError("\n".join(problems))
    return Plan(region=region, instance=instance, zones=spec.zones)


def region_of(spec: ClusterSpec) -> str:
    """Said, or that of the zones. Never from the user's AWS configuration: another laptop would look elsewhere."""
    if spec.region and not _REGION.fullmatch(spec.region):
        raise SpecError(f"region is {spec.region!r}, which is no region: write it as us-east-1")
    of_zones = [region_of_zone(zone) for zone in spec.zones or ()]
    regions = sorted({*of_zones, *([spec.region] if spec.region else [])})
    if not regions:
        raise SpecError("region is missing: write one, as us-east-1")
    if len(regions) > 1:
        raise SpecError(f"zones and region name {' and '.join(regions)}: a cluster is in one region, in one zone of it")
    letters = [zone[-1] for zone in spec.zones or ()]
    if len(set(letters)) < len(letters):  # a zone's address block goes by its letter (network.py)
        raise SpecError(f"zones has two that end in one letter ({', '.join(spec.zones or ())}): leave one of them out")
    return regions[0]


def addresses(spec: ClusterSpec) -> int:
    """Elastic IPs: the head's, and the NAT gateway's where there is one."""
    return 2 if spec.egress == "nat" and spec.nodes > 1 else 1


def region_of_zone(zone: str) -> str:
    match = _ZONE.fullmatch(zone)
    if match is None:
        raise SpecError(f"zones has {zone!r}, which is no availability zone: write them as us-east-1a")
    return match[1]


def _limits(spec: ClusterSpec, instance: instances.InstanceType | None) -> list[str]:
    found = checks.limits(spec, instance, most_nodes=MAX_NODES, provider="AWS")
    if spec.market == "flex-start":
        found.append("market is 'flex-start', which AWS hasn't: take on-demand or spot, or a reservation")
    if spec.reservation is not None and not re.fullmatch(r"cr-[0-9a-f]{8,17}", spec.reservation):
        found.append(f"reservation is {spec.reservation!r}: write its (or a capacity block's) id, cr-0123456789abcdef0")
    if instance is not None and spec.market == "spot" and not instance.spot:
        found.append(f"market is 'spot', and {instance.name} isn't sold as spot: take on-demand or a reservation")
    if spec.disk_gib is not None and spec.disk_gib > LARGEST_DISK_GIB:
        found.append(f"disk_gib is {spec.disk_gib}: gp3 has at most {LARGEST_DISK_GIB}")
    if spec.image is not None and not spec.image.startswith(("ami-", "/aws/service/")) and spec.image not in IMAGES:
        found.append(
            f"image is {spec.image!r}: take one of {', '.join(IMAGES)}, an id as ami-0123456789abcdef0, or an SSM "
            "parameter as /aws/service/…/ami-id"
        )
    return found + _storage(spec)


def _storage(spec: ClusterSpec) -> list[str]:
    storage = spec.storage
    if storage is None:
        return []
    if storage.kind == "lustre":
        size = storage.size_gib
        if size is None or not (size == 1200 or (size % 2400 == 0 and size > 0)):
            return [f"storage.size_gib is {size or 'missing'}: FSx for Lustre comes as 1200, or in steps of 2400"]
    elif storage.size_gib is not None:
        kind = "EFS" if storage.kind == "nfs" else "S3"
        return [f"storage.size_gib is {storage.size_gib}, and {kind} bills what is used: remove it"]
    return []


@functools.cache
def standard_zones(region: str) -> tuple[str, ...]:
    """The region's availability zones that need no opting in."""
    kinds = [{"Name": "zone-type", "Values": ["availability-zone"]}]
    found = api.pages("ec2", region, "describe_availability_zones", "AvailabilityZones", Filters=kinds)
    return tuple(sorted(zone["ZoneName"] for zone in found if zone.get("State") == "available"))


@functools.cache
def offering_zones(region: str, instance: str) -> tuple[str, ...]:
    """Where the region has machines of that type at all. Says nothing about today's capacity."""
    wanted = [{"Name": "instance-type", "Values": [instance]}]
    found = api.pages(
        "ec2",
        region,
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=wanted,
    )
    return tuple(sorted(offer["Location"] for offer in found))


def zones_in_order(spec: ClusterSpec, choice: Plan) -> list[str]:
    """Those that the gang is tried in: as asked for, or all that offer the machine, or the reservation's."""
    offering = offering_zones(choice.region, choice.instance.name)
    if spec.reservation is not None:
        zone = reservation(choice.region, spec.reservation)["AvailabilityZone"]
        return [zone] if choice.zones is None or zone in choice.zones else []
    standard = standard_zones(choice.region)
    return [zone for zone in choice.zones or standard if zone in offering]


@functools.cache
def reservation(region: str, id_: str) -> dict[str, Any]:
    """The reservation or capacity block; raises ProviderError when it isn't there."""
    answer = api.ask(
        "ec2",
        region,
        "describe_capacity_reservations",
        where=f"reservation {id_} in {region}",
        CapacityReservationIds=[id_],
    )
    found: list[dict[str, Any]] = answer.get("CapacityReservations", [])
    if not found:
        raise ProviderError(f"reservation {id_} isn't there in {region}: look at its id and region in AWS's console")
    return found[0]


def image(region: str, wanted: str) -> dict[str, Any]:
    """What an image's name means today, as DescribeImages tells it; raises ProviderError when none fits."""
    id_ = wanted
    if not wanted.startswith("ami-"):
        path = IMAGES.get(wanted, wanted)
        answer = api.ask("ssm", region, "get_parameter", where=f"image {wanted!r}, SSM {path} in {region}", Name=path)
        id_ = answer["Parameter"]["Value"]
    answer = api.ask("ec2", region, "describe_images", where=f"image {id_} in {region}", ImageIds=[id_])
    found: list[dict[str, Any]] = answer.get("Images", [])
    if not found:
        raise ProviderError(f"image {id_} isn't there in {region}, or isn't shared with this account: name another one")
    described = found[0]
    if described.get("State", "available") != "available":
        raise ProviderError(f"image {id_} is {described['State']}: name another one")
    if described.get("Architecture") != "x86_64":
        raise ProviderError(f"image {id_} is for {described.get('Architecture')}, and the machine is x86_64")
    return described


def root_gib(image: Mapping[str, Any]) -> int:
    """What the image needs of the root disk."""
    sizes = [
        int(mapping["Ebs"].get("VolumeSize", 0))
        for mapping in image.get("BlockDeviceMappings", [])
        if mapping.get("DeviceName") == image["RootDeviceName"] and "Ebs" in mapping
    ]
    return max(sizes, default=0)
