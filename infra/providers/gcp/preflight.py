"""Whether Google will give what is asked for: everything that is wrong, from its own APIs, before anything is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from infra import checks
from infra.errors import InfraError, ProviderError, SpecError
from infra.providers.gcp import api, faults, leftovers, offers, quotas
from infra.providers.gcp import plan as planning
from infra.providers.gcp.api import Client
from infra.providers.gcp.machines import GcpMachines
from infra.providers.gcp.plan import Plan

if TYPE_CHECKING:
    from infra.gang import Machine
    from infra.providers.base import Deployment
    from infra.spec import ClusterSpec


def problems(spec: ClusterSpec, deployment: Deployment) -> list[str]:
    """One sentence each; keys with their file. What can't be asked without credentials isn't asked."""
    where = f"stacks/{deployment.stack_file.name}, key trainstack:cluster"
    try:
        choice = planning.plan(spec)
    except SpecError as error:
        return [f"{where}.{line}" for line in str(error).splitlines()]
    try:
        client = api.connect(deployment)
        project = _project(client)
    except InfraError as error:
        return [str(error)]
    machines = GcpMachines(deployment, client, wish={}, places={}, pinned={})
    found: list[str] = []
    found += checks.asked(lambda: _strangers(deployment, client))
    found += checks.asked(lambda: _zones(client, spec, choice, where))
    found += checks.asked(lambda: _image(client, spec, where))
    if spec.reservation is None:
        found += checks.asked(lambda: quotas.problems(client, spec, choice, project=project, ours=machines.find()))
    else:
        found += checks.asked(lambda: _reservation(client, spec, choice, machines.find(), where))
    return list(dict.fromkeys(found))


def _project(client: Client) -> dict[str, Any]:
    """Says whether credentials, project and API are good; and holds the project's own quotas."""
    doing = f"Google Cloud project {client.project}"
    try:
        project = client.get(f"projects/{client.project}", doing=doing)
    except faults.NotFound:
        raise ProviderError(f"{doing}: there is none of that id (its id, not its name or number): correct it") from None
    if project.get("kind") != "compute#project":
        raise ProviderError(f"{doing}: Google's answer isn't one about a project, so it tells nothing: run it again")
    return project


def _strangers(deployment: Deployment, client: Client) -> list[str]:
    has = f"project {client.project} has machines or networks"
    return checks.strangers(deployment, leftovers.strangers(deployment, client), has=has)


def _zones(client: Client, spec: ClusterSpec, choice: Plan, where: str) -> list[str]:
    offering = offers.offering_zones(client, choice)
    if not offering:
        key = "instance" if spec.instance else "gpus"
        return [
            f"{where}.{key}: Google has no {choice.machine.name} anywhere in {choice.region}: take another "
            "region or machine"
        ]
    found = []
    if missing := [zone for zone in choice.zones or () if zone not in offering]:
        found.append(
            f"{where}.zones: {', '.join(missing)} has no {choice.machine.name}: take of {', '.join(offering)}, "
            "or remove the key"
        )
    if choice.machine.networking == "rdma":
        profiled = offers.profile_zones(client, choice)
        if without := [zone for zone in choice.zones or () if zone in offering and zone not in profiled]:
            found.append(
                f"{where}.zones: {', '.join(without)} has no network profile for RDMA, which {choice.machine.name} "
                f"needs: take of {', '.join(zone for zone in offering if zone in profiled) or 'another region'}"
            )
    if found:
        return found
    offers.zones_in_order(client, spec, choice)
    return []


def _image(client: Client, spec: ClusterSpec, where: str) -> list[str]:
    image = offers.find_image(client, spec.image or planning.IMAGE)
    disk_gib = spec.disk_gib or planning.DISK_GIB
    if image["gib"] > disk_gib:
        return [f"{where}.disk_gib is {disk_gib}, and the image needs {image['gib']}: take that or more"]
    return []


def _reservation(client: Client, spec: ClusterSpec, choice: Plan, ours: list[Machine], where: str) -> list[str]:
    """It is there, fits, and has room. Of another project's nothing can be asked."""
    name = str(spec.reservation)
    if "/" in name:
        return []
    found = offers.reservations(client, name)
    here = [each for each in found if _last(each.get("zone")).rpartition("-")[0] == choice.region]
    at = f"{where}.reservation: {name}"
    if not here:
        elsewhere = ", ".join(_last(each.get("zone")) for each in found)
        return [
            f"{at} isn't there in {choice.region}" + (f" (it is in {elsewhere})" if elsewhere else "") + ": correct it"
        ]
    wrong, ready = [], []
    for each in here:
        zone = _last(each.get("zone"))
        kind, free = _of_reservation(each)
        needed = spec.nodes - sum(1 for machine in ours if machine.lives and machine.zone == zone)
        if choice.zones is not None and zone not in choice.zones:
            wrong.append(f"{at} is in {zone}, which zones leaves out: remove zones")
        elif kind and kind != choice.machine.name:
            wrong.append(f"{at} is of {kind}, not of {choice.machine.name}: name one that fits")
        elif each.get("status") != "READY":
            wrong.append(f"{at} is {each.get('status')}: name one that is READY")
        elif free is not None and free < needed:
            wrong.append(f"{at} has {free} machines free in {zone}, and {needed} are needed: ask for fewer nodes")
        else:
            ready.append(zone)
    return [] if ready else wrong


def _of_reservation(told: Mapping[str, Any]) -> tuple[str, int | None]:
    """Machine type and how many are free; "" and None where it doesn't say (aggregate reservations)."""
    specific = told.get("specificReservation")
    if not isinstance(specific, Mapping):
        return "", None
    kind = str(specific.get("instanceProperties", {}).get("machineType", ""))
    return _last(kind), int(specific.get("count", 0)) - int(specific.get("inUseCount", 0))


def _last(link: object) -> str:
    return str(link or "").rpartition("/")[2]
