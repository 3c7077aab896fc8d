"""What a cluster on AWS costs: all that bills by the hour, a line each; live where AWS tells, else the catalogue."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from infra import prices
from infra.cost import Line
from infra.errors import InfraError
from infra.prices import lines as listed
from infra.providers.aws import api
from infra.providers.aws import plan as planning

if TYPE_CHECKING:
    from infra.spec import ClusterSpec

_PRICE_LIST_REGION = "us-east-1"  # the price list answers there, for all regions


def lines(spec: ClusterSpec) -> list[Line]:
    """Machines, disks, addresses, NAT and storage."""
    choice = planning.plan(spec)
    found = [_machines(spec, choice), _disks(spec)]
    addresses = planning.addresses(spec)
    found.append(listed.hourly("aws", "public_ipv4", f"{addresses} public address(es)", count=addresses))
    if spec.egress == "nat" and spec.nodes > 1:
        what = "NAT gateway (egress: endpoints has none)"
        found.append(listed.hourly("aws", "nat_gateway_hour", what, use="nat_gateway_gb"))
    if spec.storage is not None:
        found.append(_storage(spec.storage.kind, spec.storage.size_gib))
    return found


def machine(region: str, instance: str, market: prices.Market) -> listed.Told:
    """One machine: live, else by the catalogue."""
    try:
        live = _spot(region, instance) if market == "spot" else _on_demand(region, instance)
    except InfraError:
        live = None  # no rights to the price list, or it is down: that must not stop a cluster
    if live is not None:
        return live, "AWS's price list" if market != "spot" else "AWS's spot price history", datetime.now(UTC)
    return listed.machine("aws", region=region, instance=instance, market=market)


def _machines(spec: ClusterSpec, choice: planning.Plan) -> Line:
    each, source, as_of = machine(choice.region, choice.instance.name, spec.market)
    what = f"{spec.nodes} × {choice.instance.name} ({spec.market}, {choice.region})"
    use = ""
    if spec.reservation:
        use = "in a reservation, which bills until its end, used or not; a capacity block can't be given back"
    return Line(
        what=what,
        usd_per_hour=None if each is None else each * spec.nodes,
        source=source,
        as_of=as_of,
        per_use=use,
    )


def _disks(spec: ClusterSpec) -> Line:
    gib = (spec.disk_gib or planning.DISK_GIB) * spec.nodes
    return listed.monthly("aws", "gp3", f"{spec.nodes} root disk(s), {gib} GiB of gp3", gib)


def _storage(kind: str, size_gib: int | None) -> Line:
    if kind == "lustre":
        return listed.monthly(
            "aws", "fsx_lustre_scratch2", f"{size_gib} GiB of FSx for Lustre", size_gib or 0, outlives_guard=True
        )
    name, what = ("efs_standard", "EFS") if kind == "nfs" else ("s3_standard", "S3 bucket")
    return listed.by_use("aws", name, what)


def _on_demand(region: str, instance: str) -> float | None:
    """The one price of a Linux machine without reservation or licences; None when there isn't exactly one."""
    wanted = {
        "instanceType": instance,
        "regionCode": region,
        "operatingSystem": "Linux",
        "preInstalledSw": "NA",
        "tenancy": "Shared",
        "capacitystatus": "Used",
        "licenseModel": "No License required",
    }
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    products = api.pages(
        "pricing", _PRICE_LIST_REGION, "get_products", "PriceList", ServiceCode="AmazonEC2", Filters=filters
    )
    found = {price for product in products for price in _hourly(product) if price > 0}
    return found.pop() if len(found) == 1 else None


def _hourly(product: object) -> list[float]:
    content: Mapping[str, Any] = json.loads(product) if isinstance(product, str) else {}
    terms = content.get("terms", {}).get("OnDemand", {})
    return [
        float(dimension["pricePerUnit"]["USD"])
        for term in terms.values()
        for dimension in term["priceDimensions"].values()
        if dimension.get("unit") == "Hrs" and "USD" in dimension["pricePerUnit"]
    ]


def _spot(region: str, instance: str) -> float | None:
    """The dearest zone's price now: an estimate must not be too low."""
    found = [
        float(each["SpotPrice"])
        for each in api.pages(
            "ec2",
            region,
            "describe_spot_price_history",
            "SpotPriceHistory",
            InstanceTypes=[instance],
            ProductDescriptions=["Linux/UNIX"],
            StartTime=datetime.now(UTC),
        )
    ]
    return max(found, default=None)
