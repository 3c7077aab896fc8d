"""From the stack file to what is asked of Google: region, machine type, market. What needs no API is decided here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infra import checks, gpus
from infra.errors import SpecError
from infra.providers.gcp import instances

if TYPE_CHECKING:
    from infra.spec import ClusterSpec

KEYS = (
    *("provider", "nodes", "processes_per_node", "max_lifetime", "max_hourly_usd", "region", "zones", "gpus"),
    *("instance", "market", "reservation", "image", "disk_gib", "ssh_from", "egress", "storage"),
)
MAX_NODES = 64
DISK_GIB = 200
"""Room for the image (50 GiB), the environment (10 GiB) and checkpoints of small models."""
SMALLEST_DISK_GIB, LARGEST_DISK_GIB = 50, 65536
IMAGE = "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accelerator-2404-amd64-with-nvidia-580"
"""Ubuntu with NVIDIA's open kernel modules, signed and matching its kernel; cloud-init reads our user data."""
FLEX_START_S = (600, 7 * 86400)
FILESTORE_GIB, FILESTORE_STEP_GIB = (1024, 9984), 256
_ZONE = re.compile(r"([a-z]+-[a-z]+[0-9]+)-[a-z]")
_REGION = re.compile(r"[a-z]+-[a-z]+[0-9]+")
_IMAGE = re.compile(
    r"(projects/(?P<project>[a-z][a-z0-9:.-]+)/)?(global/images/)?(?P<family>family/)?(?P<name>[a-z][a-z0-9-]*)"
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the stack file comes to."""

    region: str
    machine: instances.InstanceType
    zones: tuple[str, ...] | None
    """As the stack file orders them; None leaves them to what the region offers."""
    provisioning: str
    """Google's word: STANDARD, SPOT, FLEX_START, or RESERVATION_BOUND for types that are sold by reservation only."""

    @property
    def what(self) -> str:
        words = {"STANDARD": "on demand", "SPOT": "spot", "FLEX_START": "flex-start"}
        return f"{self.machine.name} {words.get(self.provisioning, 'in a reservation')}"


def plan(spec: ClusterSpec) -> Plan:
    """Raises SpecError with everything that is wrong, a sentence a line; each begins with its key."""
    problems, region, machine = [], None, None
    try:
        region = region_of(spec)
    except SpecError as error:
        problems.append(str(error))
    try:
        machine = _machine(spec)
    except SpecError as error:
        problems.append(str(error))
    problems += _limits(spec, machine) + _market(spec, machine) + _storage(spec)
    if problems or region is None or machine is None:
        raise SpecError("\n".join(problems))
    return Plan(region=region, machine=machine, zones=spec.zones, provisioning=_provisioning(spec, machine))


def region_of(spec: ClusterSpec) -> str:
    """Said, or that of the zones. Never from gcloud's configuration: another laptop would look elsewhere."""
    regions = [spec.region] if spec.region else []
    if spec.region and not _REGION.fullmatch(spec.region):
        raise SpecError(f"region is {spec.region!r}, which is no region: write it as us-central1")
    for zone in spec.zones or ():
        match = _ZONE.fullmatch(zone)
        if match is None:
            raise SpecError(f"zones has {zone!r}, which is no zone: write them as us-central1-a")
        regions.append(match[1])
    distinct = sorted(set(regions))
    if not distinct:
        raise SpecError("region is missing: write one, as us-central1")
    if len(distinct) > 1:
        raise SpecError(f"zones and region name {' and '.join(distinct)}: a cluster is in one zone of one region")
    return distinct[0]


def host_networks(machine: instances.InstanceType) -> int:
    """With gVNIC interfaces: the main one and the others, without RoCE."""
    return 2 if machine.networking == "rdma" else 1 + machine.extra_networks


def image_of(wanted: str, *, project: str) -> tuple[str, str, bool]:
    """Project, name, and whether the name is a family's. Raises SpecError.

    "projects/P/global/images/N", "projects/P/global/images/family/F", the same without "global/images/", or the name
    of one of the project's own.
    """
    match = _IMAGE.fullmatch(wanted)
    if match is None:
        raise SpecError(
            f"image is {wanted!r}: write projects/PROJECT/global/images/NAME, projects/PROJECT/global/images/family/"
            "NAME, or the name of an image of your own project"
        )
    return match["project"] or project, match["name"], match["family"] is not None


def _machine(spec: ClusterSpec) -> instances.InstanceType:
    """The named one; of those with the GPUs asked for, the smallest that is sold as asked for."""
    found = gpus.wanted(spec, instances.all_types(), provider="GCP", example="a3-highgpu-8g")
    sold = [machine for machine in found if spec.reservation or spec.market in machine.markets]
    return (sold or found)[0]


def _provisioning(spec: ClusterSpec, machine: instances.InstanceType) -> str:
    if spec.reservation is not None and "on-demand" not in machine.markets:
        return "RESERVATION_BOUND"
    return {"on-demand": "STANDARD", "spot": "SPOT", "flex-start": "FLEX_START"}[spec.market]


def _limits(spec: ClusterSpec, machine: instances.InstanceType | None) -> list[str]:
    found = checks.limits(spec, machine, most_nodes=MAX_NODES, provider="GCP")
    if spec.disk_gib is not None and not SMALLEST_DISK_GIB <= spec.disk_gib <= LARGEST_DISK_GIB:
        found.append(
            f"disk_gib is {spec.disk_gib}: take between {SMALLEST_DISK_GIB} (the image needs it) and {LARGEST_DISK_GIB}"
        )
    if spec.image is not None:
        try:
            image_of(spec.image, project="")
        except SpecError as error:
            found.append(str(error))
    return found


def _market(spec: ClusterSpec, machine: instances.InstanceType | None) -> list[str]:
    found = []
    if machine is not None and spec.reservation is None and spec.market not in machine.markets:
        found.append(
            f"market is {spec.market!r}, and {machine.name} isn't sold so: take {' or '.join(machine.markets)}, "
            "or a reservation"
        )
    shortest, longest = FLEX_START_S
    if spec.market == "flex-start" and not shortest <= spec.max_lifetime_s <= longest:
        found.append(
            f"max_lifetime is {spec.max_lifetime_s / 3600:g} h, and flex-start machines run for 10m to 7d: "
            "take a lifetime between"
        )
    return found


def _storage(spec: ClusterSpec) -> list[str]:
    storage = spec.storage
    if storage is None:
        return []
    size = storage.size_gib
    if storage.kind == "lustre":
        # A network peering that Google's side may keep after the delete, and 18 000 GiB at the least.
        return [
            "storage.kind is 'lustre': Google's Managed Lustre begins at 18000 GiB and needs a peering of its own, "
            "which isn't built here: take nfs (Filestore) or bucket"
        ]
    if storage.kind == "bucket" and size is not None:
        return [f"storage.size_gib is {size}, and a bucket bills what is used: remove it"]
    least, most = FILESTORE_GIB
    if storage.kind == "nfs" and (size is None or not least <= size <= most or size % FILESTORE_STEP_GIB):
        return [
            f"storage.size_gib is {size or 'missing'}: Filestore comes in steps of {FILESTORE_STEP_GIB}, "
            f"from {least} to {most}"
        ]
    return []
