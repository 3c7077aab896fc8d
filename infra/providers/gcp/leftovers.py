"""What Google's own APIs say is still there of a stack, in every zone of the project; and its removal.

Found by the stack's label, or where a kind has no labels by its name; whose it is by label or description. In the order
in which things let go of one another, machines first: they are what costs.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from infra.errors import ProviderError
from infra.prices import Market
from infra.prices import lines as listed
from infra.providers.base import Deployment, Leftover, all_of
from infra.providers.gcp import faults, names
from infra.providers.gcp.api import Client
from infra.providers.gcp.machines import GcpMachines

_MARKETS: dict[str, Market] = {"SPOT": "spot", "FLEX_START": "flex-start"}
_TRIES = 8
_LET_GO_S = 10.0
"""Between two tries of what is still in use: a machine's end takes a while to be known everywhere."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of thing of Compute Engine: how it is listed, and what it costs while it is there."""

    name: str
    collection: str
    """Google's word in paths: "instances"."""
    is_global: bool = False
    is_labelled: bool = False
    usd_per_hour: Callable[[Mapping[str, Any]], float | None] = lambda _: 0.0


def _of_machine(item: Mapping[str, Any]) -> float | None:
    if item.get("status") in ("TERMINATED", "SUSPENDED"):
        return 0.0  # off: what it still costs is its disk, which has a line of its own
    model = item.get("scheduling", {}).get("provisioningModel", "STANDARD")
    market = _MARKETS.get(model, "on-demand")
    return listed.machine("gcp", region=_region(item), instance=_last(item.get("machineType")), market=market)[0]


def _of_disk(item: Mapping[str, Any]) -> float | None:
    return listed.per_month("gcp", _last(item.get("type")).replace("-", "_"), float(item.get("sizeGb", 0)))


def _of_address(item: Mapping[str, Any]) -> float | None:
    return 0.0 if item.get("addressType") == "INTERNAL" else listed.per_hour("gcp", "external_ipv4")


def _of_router(item: Mapping[str, Any]) -> float | None:
    """The address of its NAT; what it takes for each machine depends on how many there are."""
    return listed.per_hour("gcp", "external_ipv4") if item.get("nats") else 0.0


MACHINE = Kind(name="instance", collection="instances", is_labelled=True, usd_per_hour=_of_machine)
# What comes before and after the kinds of other APIs (Filestore, buckets and accounts).
BILLING_KINDS = (
    Kind(name="disk", collection="disks", is_labelled=True, usd_per_hour=_of_disk),
    Kind(name="address", collection="addresses", usd_per_hour=_of_address),
    Kind(name="reservation", collection="reservations", usd_per_hour=lambda _: None),
    Kind(name="placement policy", collection="resourcePolicies"),
    Kind(name="router with NAT", collection="routers", usd_per_hour=_of_router),
)
NETWORK_KINDS = (
    Kind(name="firewall", collection="firewalls", is_global=True),
    Kind(name="subnetwork", collection="subnetworks"),
    Kind(name="network", collection="networks", is_global=True),
)
_FILESTORE, _BUCKET, _ACCOUNT = "Filestore", "bucket", "service account"


def find(deployment: Deployment, client: Client) -> list[Leftover]:
    """Everything, in the order of removal. Raises ProviderError when one list can't be had."""

    def of_kinds(kinds: Iterable[Kind]) -> list[Callable[[], Iterator[Leftover]]]:
        return [functools.partial(_of_kind, kind, deployment, client) for kind in kinds]

    return all_of(
        [
            *of_kinds([MACHINE]),
            lambda: _filestore(deployment, client),
            *of_kinds(BILLING_KINDS),
            lambda: _buckets(deployment, client),
            lambda: _accounts(deployment, client),
            *of_kinds(NETWORK_KINDS),
        ]
    )


def strangers(deployment: Deployment, client: Client) -> list[str]:
    """Ids of what another checkout made under the stack's name: its machines and networks."""
    found = [each for kind in (MACHINE, NETWORK_KINDS[-1]) for each in _of_kind(kind, deployment, client)]
    return [each.id for each in found if not each.is_ours]


def remove(leftover: Leftover, deployment: Deployment, client: Client) -> None:
    """Returns when it has ended. What isn't there has ended."""
    doing = f"removing {leftover.kind} {leftover.id}"
    try:
        if leftover.kind == MACHINE.name:
            _, zone, _, name = leftover.id.split("/")
            GcpMachines(deployment, client, wish={}, places={}, pinned={}).end([f"{zone}/{name}"])
        elif leftover.kind == _FILESTORE:
            client.wait_for_file(client.delete(leftover.id, doing=doing, service="filestore"), doing=doing)
        elif leftover.kind == _BUCKET:
            _remove_bucket(leftover.id, client, doing=doing)
        elif leftover.kind == _ACCOUNT:
            path = f"projects/{client.project}/serviceAccounts/{leftover.id}"
            client.delete(path, doing=doing, service="iam")
        else:
            _remove_compute(leftover.id, client, doing=doing)
    except faults.NotFound:
        return


def _remove_compute(id_: str, client: Client, *, doing: str) -> None:
    tries = 0
    while True:
        tries += 1
        try:
            client.wait(client.delete(f"projects/{client.project}/{id_}", doing=doing), doing=doing)
            return
        except faults.InUse:
            if tries >= _TRIES:
                raise
        client.sleep(_LET_GO_S)


def _remove_bucket(name: str, client: Client, *, doing: str) -> None:
    """With all that is in it, in every version."""
    asked = {"versions": "true"}
    for each in list(client.pages(f"b/{name}/o", "items", doing=doing, service="storage", parameters=asked)):
        path, which = f"b/{name}/o/{quote(str(each['name']), safe='')}", {"generation": str(each["generation"])}
        with contextlib.suppress(faults.NotFound):
            client.delete(path, doing=f"{doing}, object {each['name']}", service="storage", parameters=which)
    client.delete(f"b/{name}", doing=doing, service="storage")


def _of_kind(kind: Kind, deployment: Deployment, client: Client) -> Iterator[Leftover]:
    doing = f"listing {kind.collection} of stack {deployment.stack}"
    if kind.is_global:
        items = client.pages(f"projects/{client.project}/global/{kind.collection}", "items", doing=doing)
    elif kind.is_labelled:
        label = f'labels.{names.STACK_LABEL}="{names.stem(deployment)}"'
        items = client.aggregated(kind.collection, doing=doing, which=label)
    else:
        items = client.aggregated(kind.collection, doing=doing)
    for item in items:
        try:
            name = str(item["name"])
            marked = item.get("labels", {}).get(names.STACK_LABEL) == names.stem(deployment)
            if not marked and not names.bears_stem(deployment, name):
                continue
            place = "/".join(str(item["selfLink"]).split("/projects/")[1].split("/")[1:-2])
        except (KeyError, IndexError, TypeError) as error:
            raise ProviderError(
                f"{doing}: Google lists one without {error}, so it tells nothing: run it again"
            ) from None
        what = [_last(item.get("machineType")), str(item.get("status", "")), place.rpartition("/")[2]]
        yield Leftover(
            kind=kind.name,
            id=f"{place}/{kind.collection}/{name}",
            detail=", ".join(filter(None, what)),
            usd_per_hour=kind.usd_per_hour(item),
            is_ours=names.owner_of(item) == deployment.owner,
            is_machine=kind is MACHINE,
        )


def _filestore(deployment: Deployment, client: Client) -> Iterator[Leftover]:
    path = f"projects/{client.project}/locations/-/instances"
    for item in _if_allowed(deployment, client, path, "instances", service="filestore"):
        if item.get("labels", {}).get(names.STACK_LABEL) != names.stem(deployment):
            continue
        gib = sum(float(share.get("capacityGb", 0)) for share in item.get("fileShares", []))
        yield Leftover(
            kind=_FILESTORE,
            id=str(item["name"]),
            detail=f"{item.get('tier', '')}, {gib:g} GiB, {item.get('state', '')}",
            usd_per_hour=listed.per_month("gcp", "filestore_zonal", gib),
            is_ours=names.owner_of(item) == deployment.owner,
        )


def _buckets(deployment: Deployment, client: Client) -> Iterator[Leftover]:
    asked = {"project": client.project, "prefix": names.bucket_stem(deployment)}
    for item in _if_allowed(deployment, client, "b", "items", service="storage", parameters=asked):
        if item.get("labels", {}).get(names.STACK_LABEL) == names.stem(deployment):
            yield Leftover(
                kind=_BUCKET,
                id=str(item["name"]),
                detail="with all that is in it",
                usd_per_hour=None,
                is_ours=names.owner_of(item) == deployment.owner,
            )


def _accounts(deployment: Deployment, client: Client) -> Iterator[Leftover]:
    path = f"projects/{client.project}/serviceAccounts"
    for item in _if_allowed(deployment, client, path, "accounts", service="iam"):
        email = str(item.get("email", ""))
        if email.startswith(names.bucket_stem(deployment)):
            yield Leftover(
                kind=_ACCOUNT,
                id=email,
                detail="of the nodes, for the bucket",
                usd_per_hour=0.0,
                is_ours=names.owner_of(item) == deployment.owner,
            )


def _if_allowed(deployment: Deployment, client: Client, path: str, key: str, **how: Any) -> list[Any]:
    """The list; empty where the project doesn't use that API, through which then nothing can have been made.

    Likewise where we may not list, unless this checkout has asked for storage: whoever uses machines alone needs no
    rights to anything else.
    """
    doing = f"listing what stack {deployment.stack} has of {how['service']}"
    try:
        return list(client.pages(path, key, doing=doing, **how))
    except faults.ApiOff:
        return []
    except faults.Denied:
        if deployment.storage_marker.exists():
            raise
        return []


def _region(item: Mapping[str, Any]) -> str:
    return _last(item.get("zone")).rpartition("-")[0]


def _last(link: object) -> str:
    return str(link or "").rpartition("/")[2]
