"""What AWS's own APIs say is still there of a stack, in every region of the account; and its removal.

By the tag `trainstack` = the stack's identity, in whatever state, from the Describe calls themselves: the tagging API
lists late and forgets. Machines first: they are what costs.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from infra.errors import AccessError, ProviderError, SpecError
from infra.gang_record import zone_of
from infra.prices import Market
from infra.prices import lines as listed
from infra.providers.aws import api, machines, plan, pricing, removal, storage
from infra.providers.base import Deployment, Leftover, all_of
from infra.spec import CONFIG_KEY, parse, read_config

_AT_ONCE = 16
HOME_REGION = "us-east-1"  # answers for what belongs to no region: the list of regions, IAM, buckets


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of thing: how it is listed and ended, and what it costs."""

    name: str
    service: str
    list: str
    """The operation, `key` the list in its answer, `id` the field with the thing's id."""
    key: str
    id: str
    remove: Callable[[str, str], None]
    """Region and id to nothing: returns when it has ended. One that isn't there has ended."""
    state: str = "State"
    gone: tuple[str, ...] = ()
    """States that are no more than a memory of it."""
    usd_per_hour: Callable[[str, Mapping[str, Any]], float | None] = lambda _region, _item: 0.0
    is_storage: bool = False
    filtered: bool = True
    """Whether the call takes EC2's tag filters; else the tags are looked at here."""
    tags: str = "Tags"


def _machine_price(region: str, item: Mapping[str, Any]) -> float | None:
    market: Market = "spot" if item.get("InstanceLifecycle") == "spot" else "on-demand"
    return pricing.machine(region, item["InstanceType"], market)[0]


# In the order in which they can be ended.
KINDS = (
    Kind(
        name="instance",
        service="ec2",
        list="describe_instances",
        key="Reservations",
        id="InstanceId",
        remove=lambda region, id_: machines.end(region, [id_]),
        gone=("terminated",),
        usd_per_hour=_machine_price,
    ),
    Kind(
        name="file system (Lustre)",
        service="fsx",
        is_storage=True,
        list="describe_file_systems",
        key="FileSystems",
        id="FileSystemId",
        remove=removal.lustre,
        state="Lifecycle",
        usd_per_hour=lambda _region, item: listed.per_month(
            "aws", "fsx_lustre_scratch2", item.get("StorageCapacity", 0)
        ),
        filtered=False,
    ),
    Kind(
        name="file system (EFS)",
        service="efs",
        is_storage=True,
        list="describe_file_systems",
        key="FileSystems",
        id="FileSystemId",
        remove=removal.efs,
        state="LifeCycleState",
        gone=("deleted",),
        usd_per_hour=lambda _region, item: listed.per_month(
            "aws", "efs_standard", item.get("SizeInBytes", {}).get("Value", 0) / 2**30
        ),
        filtered=False,
    ),
    Kind(
        name="NAT gateway",
        service="ec2",
        list="describe_nat_gateways",
        key="NatGateways",
        id="NatGatewayId",
        remove=removal.nat_gateway,
        gone=("deleted",),
        usd_per_hour=lambda _region, _item: listed.per_hour("aws", "nat_gateway_hour"),
    ),
    Kind(
        name="address",
        service="ec2",
        list="describe_addresses",
        key="Addresses",
        id="AllocationId",
        remove=removal.address,
        usd_per_hour=lambda _region, _item: listed.per_hour("aws", "public_ipv4"),
    ),
    Kind(
        name="volume",
        service="ec2",
        list="describe_volumes",
        key="Volumes",
        id="VolumeId",
        remove=removal.simply("ec2", "delete_volume", "VolumeId", gone="InvalidVolume.NotFound"),
        gone=("deleted", "deleting"),
        usd_per_hour=lambda _region, item: listed.per_month("aws", "gp3", item.get("Size", 0)),
    ),
    Kind(
        name="endpoint",
        service="ec2",
        list="describe_vpc_endpoints",
        key="VpcEndpoints",
        id="VpcEndpointId",
        remove=removal.endpoint,
        gone=("deleted", "Deleted"),
    ),
    Kind(
        name="network interface",
        service="ec2",
        list="describe_network_interfaces",
        key="NetworkInterfaces",
        id="NetworkInterfaceId",
        remove=removal.simply(
            "ec2", "delete_network_interface", "NetworkInterfaceId", gone="InvalidNetworkInterfaceID.NotFound"
        ),
        state="Status",
        tags="TagSet",
    ),
    Kind(
        name="placement group",
        service="ec2",
        list="describe_placement_groups",
        key="PlacementGroups",
        id="GroupName",
        remove=removal.simply("ec2", "delete_placement_group", "GroupName", gone="InvalidPlacementGroup.Unknown"),
        gone=("deleted",),
    ),
    Kind(
        name="security group",
        service="ec2",
        list="describe_security_groups",
        key="SecurityGroups",
        id="GroupId",
        remove=removal.simply("ec2", "delete_security_group", "GroupId", gone="InvalidGroup.NotFound"),
    ),
    Kind(
        name="subnet",
        service="ec2",
        list="describe_subnets",
        key="Subnets",
        id="SubnetId",
        remove=removal.simply("ec2", "delete_subnet", "SubnetId", gone="InvalidSubnetID.NotFound"),
    ),
    Kind(
        name="route table",
        service="ec2",
        list="describe_route_tables",
        key="RouteTables",
        id="RouteTableId",
        remove=removal.simply("ec2", "delete_route_table", "RouteTableId", gone="InvalidRouteTableID.NotFound"),
    ),
    Kind(
        name="internet gateway",
        service="ec2",
        list="describe_internet_gateways",
        key="InternetGateways",
        id="InternetGatewayId",
        remove=removal.internet_gateway,
    ),
    Kind(
        name="network (VPC)",
        service="ec2",
        list="describe_vpcs",
        key="Vpcs",
        id="VpcId",
        remove=removal.simply("ec2", "delete_vpc", "VpcId", gone="InvalidVpcID.NotFound"),
    ),
)


def find(deployment: Deployment) -> list[Leftover]:
    """Everything, in the order of removal. Raises ProviderError when a region can't tell."""
    regions = [each["RegionName"] for each in api.pages("ec2", HOME_REGION, "describe_regions", "Regions")]
    known = _known_regions(deployment)
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        suspected = pool.map(lambda region: region in known or _may_have_something(region, deployment), regions)
        searched = [region for region, is_suspected in zip(regions, suspected, strict=True) if is_suspected]
        calls = [(kind, region) for kind in KINDS for region in searched]

        def answer(kind: Kind, region: str) -> list[Leftover]:
            return list(_of_kind(kind, region, deployment))

        answers = [pool.submit(answer, *call) for call in calls]
    rest = [functools.partial(_if_allowed, question, deployment) for question in (_buckets, _roles)]
    return all_of([*(answer.result for answer in answers), *rest])


def _if_allowed(question: Callable[[Deployment], Iterator[Leftover]], deployment: Deployment) -> Iterator[Leftover]:
    try:
        yield from question(deployment)
    except AccessError as error:
        if not _is_none_of_ours(error, deployment):
            raise


def _is_none_of_ours(error: ProviderError, deployment: Deployment) -> bool:
    """Whoever uses machines alone needs no rights to storage, unless this checkout has asked for some."""
    return isinstance(error, AccessError) and not deployment.storage_marker.exists()


def _known_regions(deployment: Deployment) -> set[str]:
    """Where the stack file and the record of its machines say that it is: always looked through."""
    found = set()
    with contextlib.suppress(SpecError):
        written = read_config(deployment.stack_file).get(f"{deployment.project}:{CONFIG_KEY}")
        found.add(plan.region_of(parse(written, file=deployment.stack_file.name)))
    if zone := zone_of(deployment.gang_folder):
        found.add(plan.region_of_zone(zone))
    return found


def _may_have_something(region: str, deployment: Deployment) -> bool:
    """A region that can't tell is searched, which says what it refuses."""
    try:
        return _has_something(region, deployment)
    except ProviderError:
        return True


def _has_something(region: str, deployment: Deployment) -> bool:
    """Whether a region that nothing names is worth a full search: one look at the machines, one at all tags."""
    if any(api.instances(region, api.tagged(deployment))):
        return True
    tagged = [{"Key": api.IDENTITY_TAG, "Values": [deployment.identity]}]
    tagging = "resourcegroupstaggingapi"
    return any(api.pages(tagging, region, "get_resources", "ResourceTagMappingList", TagFilters=tagged))


def remove(leftover: Leftover) -> None:
    region, _, id_ = leftover.id.partition("/")
    if leftover.kind == "bucket":
        removal.bucket(region, id_)
    elif leftover.kind == "role":
        removal.role(HOME_REGION, id_)
    else:
        next(kind for kind in KINDS if kind.name == leftover.kind).remove(region, id_)


def _of_kind(kind: Kind, region: str, deployment: Deployment) -> Iterator[Leftover]:
    filters = {"Filters": api.tagged(deployment)} if kind.filtered else {}
    try:
        items = list(api.pages(kind.service, region, kind.list, kind.key, **filters))
    except ProviderError as error:
        if not api.is_served(kind.service, region) or (kind.is_storage and _is_none_of_ours(error, deployment)):
            return  # FSx isn't in every region
        raise
    if kind.name == "instance":
        items = [each for reservation in items for each in reservation.get("Instances", [])]
    for item in items:
        tags = api.tags(item.get(kind.tags))
        state = item.get(kind.state, "")
        state = str(state.get("Name", "") if isinstance(state, Mapping) else state)
        if tags.get(api.IDENTITY_TAG) != deployment.identity or state in kind.gone:
            continue
        what = [item.get("InstanceType", ""), state, region, tags.get("Name", "")]
        yield Leftover(
            kind=kind.name,
            id=f"{region}/{item[kind.id]}",
            detail=", ".join(filter(None, what)),
            usd_per_hour=kind.usd_per_hour(region, item),
            is_ours=tags.get(api.OWNER_TAG) == deployment.owner,
            is_machine=kind.name == "instance",
        )


def _buckets(deployment: Deployment) -> Iterator[Leftover]:
    """By their tag, or by our own name: a bucket gets its tags in a call of its own, before which a kill may come."""
    ours = storage.name(deployment)
    for bucket in api.pages("s3", HOME_REGION, "list_buckets", "Buckets"):
        name = bucket["Name"]
        if not name.startswith(storage.PREFIX):
            continue
        tags = _bucket_tags(name)
        if name == ours or tags.get(api.IDENTITY_TAG) == deployment.identity:
            region = bucket.get("BucketRegion") or HOME_REGION
            yield Leftover(
                kind="bucket",
                id=f"{region}/{name}",
                detail="with all that is in it",
                usd_per_hour=None,
                is_ours=name == ours or tags.get(api.OWNER_TAG) == deployment.owner,
            )


def _bucket_tags(name: str) -> dict[str, str]:
    try:
        return api.tags(api.client("s3", HOME_REGION).get_bucket_tagging(Bucket=name)["TagSet"])
    except api.FAILURES as error:
        if api.code_of(error) in ("NoSuchTagSet", "NoSuchBucket"):
            return {}
        raise api.translated(error, where=f"tags of bucket {name}") from None


def _roles(deployment: Deployment) -> Iterator[Leftover]:
    for role in api.pages("iam", HOME_REGION, "list_roles", "Roles", PathPrefix=storage.PATH):
        answer = api.ask("iam", HOME_REGION, "list_role_tags", RoleName=role["RoleName"])
        tags = api.tags(answer["Tags"])
        if tags.get(api.IDENTITY_TAG) == deployment.identity:
            yield Leftover(
                kind="role",
                id=f"{HOME_REGION}/{role['RoleName']}",
                detail="with its instance profile",
                usd_per_hour=0.0,
                is_ours=tags.get(api.OWNER_TAG) == deployment.owner,
            )
