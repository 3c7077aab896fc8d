"""Everything that exists in the account and isn't there by default: what a test of teardown must find empty."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from moto.core.base_backend import BackendDict
from moto.ec2.models import ec2_backends
from moto.efs.models import efs_backends
from moto.fsx.models import fsx_backends
from moto.iam.models import iam_backends
from moto.s3.models import s3_backends

from tests.stand_ins.aws.backends import (
    ACCOUNT,
    all_groups,
    all_subnets,
    live_endpoints,
    live_instances,
    live_nat_gateways,
)
from tests.stand_ins.aws.state import STATE


def everything() -> dict[str, list[str]]:
    """Kind -> ids, kinds without any left out."""
    found: dict[str, list[str]] = {}
    for kind, name in [*_ec2(), *_others()]:
        found.setdefault(kind, []).append(name)
    return found


def _made(backends: BackendDict) -> list[Any]:
    """The backends that were used: looking at another region's would make it."""
    return list(backends[ACCOUNT].values())


def _ec2() -> Iterator[tuple[str, str]]:
    for backend in _made(ec2_backends):
        default = {vpc.id for vpc in backend.vpcs.values() if vpc.is_default == "true" or vpc.is_default is True}
        yield from (("vpc", each) for each in backend.vpcs if each not in default)
        yield from (("subnet", each.id) for each in all_subnets(backend) if each.vpc_id not in default)
        yield from (("security group", each.id) for each in all_groups(backend) if each.name != "default")
        yield from (("internet gateway", each) for each in backend.internet_gateways)
        yield from (("address", each.allocation_id) for each in backend.addresses)
        yield from (("nat gateway", each.id) for each in live_nat_gateways(backend))
        main = {table.id for table in backend.route_tables.values() if _is_main(table)}
        yield from (("route table", each) for each in backend.route_tables if each not in main)
        yield from (("network interface", each) for each in backend.enis)
        yield from (("vpc endpoint", each.id) for each in live_endpoints(backend))
        yield from (("instance", each.id) for each in live_instances(backend))
        yield from (("volume", each) for each in backend.volumes)
        yield from (("launch template", each) for each in backend.launch_templates)
        yield from (("key pair", each) for each in backend.key_pairs)
    yield from (("placement group", name) for _, name in STATE.placement_groups)
    for each in STATE.reservations.values():
        if each["State"] in ("active", "pending", "scheduled"):
            yield (
                ("capacity block" if each["ReservationType"] == "capacity-block" else "capacity reservation"),
                each["CapacityReservationId"],
            )


def _is_main(table: Any) -> bool:
    return bool(getattr(table, "main_association_id", None))


def _others() -> Iterator[tuple[str, str]]:
    for s3 in _made(s3_backends):
        yield from (("bucket", each) for each in s3.buckets)
    for efs in _made(efs_backends):
        yield from (("efs file system", each) for each in efs.file_systems_by_id)
        yield from (("efs mount target", each) for each in efs.mount_targets_by_id)
    for fsx in _made(fsx_backends):
        yield from (("fsx file system", each) for each in fsx.file_systems)
    for iam in _made(iam_backends):
        yield from (("role", each.name) for each in iam.roles.values() if "/aws-service-role/" not in each.path)
        yield from (("instance profile", each.name) for each in iam.instance_profiles.values())
