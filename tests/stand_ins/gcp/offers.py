"""What Google has to offer, read only: zones, regions with quotas, machine types, images, network profiles."""

from __future__ import annotations

from collections.abc import Callable

from tests.stand_ins.gcp import catalogue, pages, rules
from tests.stand_ins.gcp.cloud import Cloud
from tests.stand_ins.gcp.errors import not_found
from tests.stand_ins.gcp.schemas import Request
from tests.stand_ins.gcp.store import Body, link


def answer(cloud: Cloud, request: Request, resource: str, verb: str) -> Body:
    project = request.arguments["project"]
    if resource == "projects":
        return {"kind": "compute#project", "name": project, "id": "1", "quotas": cloud.quotas.of_project(cloud.store)}
    bodies = OFFERS[resource](cloud, project)
    if verb == "aggregatedList":
        return pages.by_scope(request, resource, resource[:-1], "zones", bodies)
    place = request.arguments.get("zone") if resource == "machineTypes" else None
    if place is not None:
        pages.scope(request, "zones")
        bodies = [body for body in bodies if body["zone"] == place]
    if verb == "list":
        return pages.page(request, f"compute#{resource[:-1]}List", bodies)
    key, name = ("family" if verb == "getFromFamily" else "name"), list(request.arguments.values())[-1]
    found = [body for body in bodies if body[key] == name]
    if not found:
        raise not_found("/".join(["projects", *list(request.arguments.values())[:-1], resource, name]))
    return found[-1]


def _zones(cloud: Cloud, project: str) -> list[Body]:
    del cloud
    return [
        {
            "kind": "compute#zone",
            "id": str(2000 + index),
            "name": zone,
            "status": "UP",
            "region": link(f"projects/{project}/regions/{catalogue.region_of(zone)}"),
            "selfLink": link(f"projects/{project}/zones/{zone}"),
        }
        for index, zone in enumerate(catalogue.all_zones())
    ]


def _regions(cloud: Cloud, project: str) -> list[Body]:
    return [
        {
            "kind": "compute#region",
            "id": str(1000 + index),
            "name": region,
            "status": "UP",
            "zones": [link(f"projects/{project}/zones/{region}-{letter}") for letter in letters],
            "quotas": cloud.quotas.of_region(cloud.store, region),
            "selfLink": link(f"projects/{project}/regions/{region}"),
        }
        for index, (region, letters) in enumerate(catalogue.ZONES.items())
    ]


def _machine_types(cloud: Cloud, project: str) -> list[Body]:
    found = []
    for zone in catalogue.all_zones():
        for index, machine in enumerate(catalogue.MACHINE_TYPES.values()):
            if not cloud.offers(machine.name, zone):
                continue
            body: Body = {
                "kind": "compute#machineType",
                "id": str(3000 + index),
                "name": machine.name,
                "guestCpus": machine.vcpus,
                "memoryMb": machine.memory_gib * 1024,
                "zone": zone,
                "selfLink": link(f"projects/{project}/zones/{zone}/machineTypes/{machine.name}"),
            }
            if machine.gpus:
                body["accelerators"] = [{"guestAcceleratorType": machine.gpu, "guestAcceleratorCount": machine.gpus}]
            found.append(body)
    return found


def _images(cloud: Cloud, project: str) -> list[Body]:
    del cloud
    return [image for image in rules.images() if f"/projects/{project}/" in image["selfLink"]]


def _profiles(cloud: Cloud, project: str) -> list[Body]:
    del cloud
    return [
        {
            "kind": "compute#networkProfile",
            "name": f"{zone}-vpc-roce",
            "location": {"name": zone, "scope": "ZONE"},
            "profileType": {
                "networkType": "RDMA",
                "rdmaSubtype": "ROCE",
                "vpcSubtype": "REGIONAL",
                "ultraLowLatencySubtype": "",
            },
            "features": {
                "interfaceTypes": ["MRDMA"],
                "allowExternalIpAccess": "EXTERNAL_IP_ACCESS_BLOCKED",
                "allowCloudNat": "CLOUD_NAT_BLOCKED",
                "allowVpcFirewallRules": "VPC_FIREWALL_RULES_BLOCKED",
                "allowMultiNicInSameNetwork": "MULTI_NIC_IN_SAME_NETWORK_ALLOWED",
                "allowMultiNicInSameSubnetwork": "MULTI_NIC_IN_SAME_SUBNETWORK_BLOCKED",
            },
            "selfLink": link(f"projects/{project}/global/networkProfiles/{zone}-vpc-roce"),
        }
        for zone in catalogue.ROCE_ZONES
    ]


OFFERS: dict[str, Callable[[Cloud, str], list[Body]]] = {
    "zones": _zones,
    "regions": _regions,
    "machineTypes": _machine_types,
    "images": _images,
    "networkProfiles": _profiles,
    "projects": _zones,
}
