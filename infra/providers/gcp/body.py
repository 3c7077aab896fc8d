"""The body of instances.insert for one machine of the gang. Pure.

`wish`, `places` and `pinned` are written by resources.py: what holds everywhere, what holds in one zone, and what was
fixed when the gang was first made.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from infra.errors import ProviderError
from infra.gang import Order
from infra.providers.base import Deployment
from infra.providers.gcp import names
from infra.user_data import USER, cloud_config

# Google's own end comes this long before the guard's. The guard can only power off, and a machine that is off forgets
# its maxRunDuration: it would stay, with its disk on the bill. Google may come up to 30 s late.
EARLIER_S = 90
SHORTEST_RUN_S = 30
_STORAGE_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


def instance(
    deployment: Deployment,
    order: Order,
    *,
    wish: Mapping[str, Any],
    place: Mapping[str, Any],
    pinned: Mapping[str, Any],
    now: datetime,
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "name": names.name(deployment, order.name),
        "description": names.description(deployment),
        "machineType": f"zones/{order.zone}/machineTypes/{wish['machine']}",
        "labels": names.labels(deployment, node=order.name),
        "tags": {"items": tags(deployment, is_head=order.rank == 0)},
        "metadata": {"items": _metadata(order, wish)},
        "disks": [_boot_disk(deployment, order, wish, pinned)],
        "networkInterfaces": _interfaces(order, wish, place),
        "scheduling": _scheduling(order, wish, now),
        # Secure boot would refuse kernel modules that are built on the machine (DKMS: gve and the import helper of
        # GPUDirect-TCPXO, drivers of a plain image): no key of the firmware has signed them. The rest stays on.
        "shieldedInstanceConfig": {
            "enableSecureBoot": False,
            "enableVtpm": True,
            "enableIntegrityMonitoring": True,
        },
        "reservationAffinity": _reservation(wish),
    }
    if wish.get("service_account"):
        body["serviceAccounts"] = [{"email": wish["service_account"], "scopes": [_STORAGE_SCOPE]}]
    if policy := _placement(wish, pinned):
        body["resourcePolicies"] = [policy]
    if wish["provisioning"] == "FLEX_START":
        body["params"] = {"requestValidForDuration": {"seconds": str(wish["wait_s"])}}
    return body


def tags(deployment: Deployment, *, is_head: bool) -> list[str]:
    """Network tags: what the firewall rules aim at."""
    everyone = names.name(deployment, "node")
    return [everyone, names.name(deployment, "head")] if is_head else [everyone]


def _metadata(order: Order, wish: Mapping[str, Any]) -> list[dict[str, str]]:
    items = {
        "user-data": cloud_config(order.boot),
        "ssh-keys": f"{USER}:{wish['public_key']}",
        "enable-oslogin": "FALSE",  # OS Login, where the project or organisation has it on, ignores ssh-keys
        "block-project-ssh-keys": "TRUE",
        "enable-guest-attributes": "TRUE",
        "serial-port-enable": "FALSE",
    }
    return [{"key": key, "value": value} for key, value in items.items()]


def _boot_disk(
    deployment: Deployment, order: Order, wish: Mapping[str, Any], pinned: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "boot": True,
        "autoDelete": True,
        "initializeParams": {
            "sourceImage": pinned["image"],
            "diskSizeGb": str(max(int(wish["disk_gib"]), int(pinned["image_gib"]))),
            "diskType": f"zones/{order.zone}/diskTypes/{wish['disk_type']}",
            "labels": names.labels(deployment, node=order.name),
        },
    }


def _interfaces(order: Order, wish: Mapping[str, Any], place: Mapping[str, Any]) -> list[dict[str, Any]]:
    """In the order of the machine's cards: the first one has the node's address, and on the head the public one."""
    interfaces: list[dict[str, Any]] = [
        {"network": each["network"], "subnetwork": each["subnetwork"], "nicType": each["kind"]}
        for each in [*wish["interfaces"], *place.get("interfaces", [])]
    ]
    if order.rank == 0:
        interfaces[0]["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
    return interfaces


def _scheduling(order: Order, wish: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    provisioning = str(wish["provisioning"])
    scheduling: dict[str, Any] = {
        "provisioningModel": provisioning,
        "onHostMaintenance": "TERMINATE",  # machines with GPUs can't migrate
        # A machine that Google restarts is the same one with an empty scratch and a broken run, billing unasked.
        "automaticRestart": False,
        "instanceTerminationAction": "DELETE",
    }
    if provisioning == "SPOT":
        scheduling["preemptible"] = True
    if provisioning != "RESERVATION_BOUND":
        # Those end with their reservation, which bills to its end whether they run or not.
        left = int((order.boot.expires_at - now).total_seconds()) - EARLIER_S
        if left < SHORTEST_RUN_S:
            raise ProviderError(
                f"{order.name}: {max(0, left + EARLIER_S)} s are left of the cluster's lifetime, and a machine on GCP "
                f"needs {EARLIER_S + SHORTEST_RUN_S} s: raise max_lifetime, or run `pulumi destroy` and `pulumi up`"
            )
        scheduling["maxRunDuration"] = {"seconds": str(left)}
    return scheduling


def _reservation(wish: Mapping[str, Any]) -> dict[str, Any]:
    """Without one of the stack's own none is used: another team's reserved machines aren't ours to take."""
    if not wish.get("reservation"):
        return {"consumeReservationType": "NO_RESERVATION"}
    return {
        "consumeReservationType": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": [wish["reservation"]],
    }


def _placement(wish: Mapping[str, Any], pinned: Mapping[str, Any]) -> str | None:
    """A reservation's machines must have the reservation's own policy, whatever it is; others get the stack's."""
    found = pinned.get("placement") if wish.get("reservation") else wish.get("placement")
    return str(found) if found else None
