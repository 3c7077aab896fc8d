"""What Google has where, asked live: zones with the machine, RoCE profiles, reservations, images."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from infra.errors import ProviderError, UnsupportedError
from infra.providers.gcp import faults
from infra.providers.gcp import plan as planning
from infra.providers.gcp.api import Client
from infra.providers.gcp.plan import Plan

if TYPE_CHECKING:
    from infra.spec import ClusterSpec

_ROCE = re.compile(r"([a-z0-9-]+)-vpc-roce")


def offering_zones(client: Client, choice: Plan) -> list[str]:
    """Zones of the region that have machines of that type at all. Says nothing about today's capacity."""
    doing = f"asking where {choice.machine.name} is offered"
    found = client.aggregated("machineTypes", doing=doing, which=f'name="{choice.machine.name}"')
    zones = {str(each.get("zone", "")).rpartition("/")[2] for each in found if each.get("name") == choice.machine.name}
    return sorted(zone for zone in zones if zone.rpartition("-")[0] == choice.region)


def profile_zones(client: Client, choice: Plan) -> list[str]:
    """Zones of the region that have a network profile for RDMA."""
    path = f"projects/{client.project}/global/networkProfiles"
    found = client.pages(path, "items", doing="listing network profiles")
    zones = {match[1] for each in found if (match := _ROCE.fullmatch(str(each.get("name"))))}
    return sorted(zone for zone in zones if zone.rpartition("-")[0] == choice.region)


def roce_zones(client: Client, choice: Plan) -> list[str]:
    """Those that a RoCE network is made in: the ones asked for, or all of the region that have such a profile.

    Not only those that offer the machine today: a network can't be taken away from under a gang, and is free.
    """
    return [zone for zone in profile_zones(client, choice) if choice.zones is None or zone in choice.zones]


def zones_in_order(client: Client, spec: ClusterSpec, choice: Plan) -> list[str]:
    """Those that the gang is tried in: as asked for, or all that offer the machine, or the reservation's.

    Raises UnsupportedError when there is none.
    """
    found = offering_zones(client, choice)
    if choice.machine.networking == "rdma":
        profiled = profile_zones(client, choice)
        found = [zone for zone in found if zone in profiled]
    if spec.reservation is not None and (of_reservation := reservation_zones(client, spec.reservation)):
        found = [zone for zone in found if zone in of_reservation]
    zones = [zone for zone in choice.zones or found if zone in found]
    if not zones:
        raise UnsupportedError(
            f"no zone of {choice.region} has {choice.what}"
            + (f" of those asked for ({', '.join(choice.zones)})" if choice.zones else "")
            + ": take another region, zone or machine"
        )
    return zones


def reservations(client: Client, name: str) -> list[dict[str, Any]]:
    """Those of that name: a zone each. Of another project's ("projects/P/reservations/N") we can't know."""
    if "/" in name:
        return []
    found = client.aggregated("reservations", doing=f"looking for reservation {name}", which=f'name="{name}"')
    return [each for each in found if each.get("name") == name]


def reservation_zones(client: Client, name: str) -> set[str]:
    return {str(each.get("zone", "")).rpartition("/")[2] for each in reservations(client, name)}


def pin(client: Client, wish: Mapping[str, Any]) -> dict[str, Any]:
    """What is fixed for the life of a gang: the image by its own name, and the reservation's placement policy."""
    image = find_image(client, str(wish["image"]))
    policies = [
        policy
        for each in reservations(client, str(wish.get("reservation", "")) or "/")
        for policy in each.get("resourcePolicies", {}).values()
    ]
    return {
        "image": image["path"],
        "image_gib": image["gib"],
        "placement": str(policies[0]) if policies else "",
    }


def find_image(client: Client, wanted: str) -> dict[str, Any]:
    """path and gib of the image that a name or family means today; raises ProviderError when none fits."""
    project, name, is_family = planning.image_of(wanted, project=client.project)
    doing = f"looking for image {wanted}"
    path = f"projects/{project}/global/images/"
    try:
        found = client.get(f"{path}family/{name}" if is_family else f"{path}{name}", doing=doing)
    except faults.NotFound:
        raise ProviderError(
            f"image {wanted!r} isn't there{' or its family is empty' if is_family else ''}: look it up with "
            f"`gcloud compute images list --project {project}`"
        ) from None
    if "name" not in found:
        raise ProviderError(f"{doing}: Google's answer has no name, so it tells nothing: run it again")
    if found.get("status", "READY") != "READY":
        raise ProviderError(f"image {wanted!r} is {found['status']}: wait until it is ready, or take another one")
    if found.get("architecture", "X86_64") not in ("X86_64", "ARCHITECTURE_UNSPECIFIED"):
        raise ProviderError(
            f"image {wanted!r} is for {found['architecture']}, and the machines are x86-64: name another"
        )
    return {"path": f"{path}{found['name']}", "gib": int(found.get("diskSizeGb", 0))}
