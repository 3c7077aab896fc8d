"""Operations that moto lacks: placement groups, capacity reservations and blocks, quotas, prices, images.

EC2's go into moto's own response class, so that moto writes the answer from botocore's model. `answer` serves those
whose service moto doesn't have.
"""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend
from moto.ec2.models.nat_gateways import NatGatewayBackend
from moto.ec2.responses import EC2Response
from moto.servicequotas.exceptions import NoSuchResource
from moto.servicequotas.models import ServiceQuotasBackend
from moto.servicequotas.responses import ServiceQuotasResponse
from moto.ssm.models import Parameter, ParameterDict

from tests.stand_ins.aws.backends import ACCOUNT, ec2, tags
from tests.stand_ins.aws.capacity import (
    cancel_reservation,
    create_reservation,
    describe_block_offerings,
    describe_reservations,
    modify_reservation,
    purchase_block,
)
from tests.stand_ins.aws.refusals import Refused, new_id, tag_specification
from tests.stand_ins.aws.state import QUOTAS, STATE, Call

IMAGES = {
    "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id": "22040",
    "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id": "24040",
    "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id": "canonical",
}
IMAGE_IDS = {"22040": "ami-0d1a0000000022040", "24040": "ami-0d1a0000000024040", "canonical": "ami-0cab0000000022040"}


def install() -> None:
    """Put everything into moto's classes. Once, before the first request."""
    for operation in (
        create_placement_group,
        describe_placement_groups,
        delete_placement_group,
        describe_spot_price_history,
        create_reservation,
        describe_reservations,
        cancel_reservation,
        modify_reservation,
        describe_block_offerings,
        purchase_block,
    ):
        setattr(EC2Response, NAMES.get(operation.__name__, operation.__name__), operation)
    _offerings_by_zone()
    _ec2_quotas()
    _images_by_name()
    _nat_gateways_that_let_go()
    _endpoints_without_their_route_tables()


NAMES = {
    "create_reservation": "create_capacity_reservation",
    "describe_reservations": "describe_capacity_reservations",
    "cancel_reservation": "cancel_capacity_reservation",
    "modify_reservation": "modify_capacity_reservation",
    "describe_block_offerings": "describe_capacity_block_offerings",
    "purchase_block": "purchase_capacity_block",
}


def answer(call: Call) -> tuple[str, list[tuple[str, str]], bytes] | None:
    """The answer to what moto has no service or no room for, or None."""
    if (call.service, call.operation) == ("pricing", "GetProducts"):
        return "200 OK", [("Content-Type", "application/x-amz-json-1.1")], json.dumps(_products(call.params)).encode()
    if call.service == "ec2" and call.operation in ("CreateTags", "DeleteTags"):
        resources = call.params.get("Resources", [])
        if resources and all(each.startswith(("pg-", "cr-", "vpce-", "sgr-")) for each in resources):
            stored = ec2(call.region).tags
            for each in resources:
                for tag in call.params.get("Tags", []):
                    if call.operation == "CreateTags":
                        stored[each][tag["Key"]] = tag.get("Value", "")
                    else:
                        stored[each].pop(tag["Key"], None)
            name = f"{call.operation}Response"
            body = f'<{name} xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><return>true</return></{name}>'
            return "200 OK", [("Content-Type", "text/xml")], body.encode()
    return None


# -- placement groups -----------------------------------------------------------------------------------------------


def create_placement_group(self: Any) -> ActionResult:
    """CreatePlacementGroup: the name is the region's; spread and partition as AWS's."""
    name, strategy = self._get_param("GroupName"), self._get_param("Strategy")
    key = (self.region, name)
    if key in STATE.placement_groups:
        raise Refused("InvalidPlacementGroup.Duplicate", f"The placement group '{name}' already exists.")
    if strategy not in ("cluster", "spread", "partition", "precision-time"):
        raise Refused("InvalidParameterValue", f"Value ({strategy}) for parameter strategy is invalid.")
    partitions = self._get_param("PartitionCount")
    if partitions and strategy != "partition":
        raise Refused("InvalidParameterCombination", "PartitionCount may only be given with the strategy partition.")
    group = {
        "GroupName": name,
        "State": "available",
        "Strategy": strategy,
        "GroupId": new_id("pg"),
        "PartitionCount": partitions or (2 if strategy == "partition" else None),
        "SpreadLevel": self._get_param("SpreadLevel") or ("rack" if strategy == "spread" else None),
        "GroupArn": f"arn:aws:ec2:{self.region}:{ACCOUNT}:placement-group/{name}",
    }
    STATE.placement_groups[key] = group
    self.ec2_backend.tags[group["GroupId"]].update(tag_specification(self, "placement-group"))
    return ActionResult({"PlacementGroup": {**group, "Tags": tags(self.ec2_backend, group["GroupId"])}})


def describe_placement_groups(self: Any) -> ActionResult:
    """DescribePlacementGroups, by names, ids and the filters group-name, strategy, state, tag:<key>, tag-key."""
    names, ids = self._get_param("GroupNames", []), self._get_param("GroupIds", [])
    here = [group for (region, _), group in STATE.placement_groups.items() if region == self.region]
    for wanted, field in ((names, "GroupName"), (ids, "GroupId")):
        unknown = set(wanted) - {group[field] for group in here}
        if unknown:
            raise Refused("InvalidPlacementGroup.Unknown", f"The Placement Group '{unknown.pop()}' is unknown.")
        here = [group for group in here if not wanted or group[field] in wanted]
    described = [{**group, "Tags": tags(self.ec2_backend, group["GroupId"])} for group in here]
    return ActionResult({"PlacementGroups": [group for group in described if _matches(self, group)]})


def _matches(self: Any, group: dict[str, Any]) -> bool:
    fields = {"group-name": "GroupName", "strategy": "Strategy", "state": "State", "group-arn": "GroupArn"}
    own = {tag["Key"]: tag["Value"] for tag in group["Tags"]}
    for name, values in self._filters_from_querystring().items():
        if name in fields:
            if group[fields[name]] not in values:
                return False
        elif name.startswith("tag:"):
            if own.get(name[4:]) not in values:
                return False
        elif name == "tag-key":
            if not set(values) & set(own):
                return False
        else:
            raise Refused("InvalidParameterValue", f"The filter '{name}' is invalid")
    return True


def delete_placement_group(self: Any) -> ActionResult:
    """DeletePlacementGroup; that it isn't in use was checked by rules.py."""
    name = self._get_param("GroupName")
    group = STATE.placement_groups.pop((self.region, name), None)
    if group is None:
        raise Refused("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
    self.ec2_backend.tags.pop(group["GroupId"], None)
    return ActionResult({})


# -- prices ---------------------------------------------------------------------------------------------------------


def _products(params: dict[str, Any]) -> dict[str, Any]:
    """GetProducts of AmazonEC2: only prices that a test set; filters by instanceType and regionCode."""
    wanted = {each["Field"]: each["Value"] for each in params.get("Filters", [])}
    found = []
    for (kind, region), usd in STATE.prices.items():
        if wanted.get("instanceType", kind) != kind or wanted.get("regionCode", region) != region:
            continue
        dimension = {"unit": "Hrs", "pricePerUnit": {"USD": f"{usd:.10f}"}, "beginRange": "0", "endRange": "Inf"}
        product = {
            "product": {
                "productFamily": "Compute Instance",
                "attributes": {
                    "instanceType": kind,
                    "regionCode": region,
                    "operatingSystem": "Linux",
                    "tenancy": "Shared",
                    "preInstalledSw": "NA",
                    "capacitystatus": "Used",
                },
                "sku": "STANDIN",
            },
            "serviceCode": "AmazonEC2",
            "terms": {"OnDemand": {"STANDIN.1": {"priceDimensions": {"STANDIN.1.1": dimension}, "sku": "STANDIN"}}},
            "version": "20261101000000",
            "publicationDate": "2026-11-01T00:00:00Z",
        }
        found.append(json.dumps(product))
    return {"FormatVersion": "aws_v1", "PriceList": found}


def describe_spot_price_history(self: Any) -> ActionResult:
    """DescribeSpotPriceHistory: only prices that a test set."""
    kinds, zone = self._get_param("InstanceTypes", []), self._get_param("AvailabilityZone")
    history = [
        {
            "AvailabilityZone": where,
            "InstanceType": kind,
            "ProductDescription": "Linux/UNIX",
            "SpotPrice": f"{usd:.6f}",
            "Timestamp": utcnow(),
        }
        for (kind, where), usd in STATE.spot_prices.items()
        if (not kinds or kind in kinds) and zone in (None, where) and where.startswith(self.region)
    ]
    return ActionResult({"SpotPriceHistory": history, "NextToken": ""})


# -- corrections of moto's own ----------------------------------------------------------------------------------------


def _offerings_by_zone() -> None:
    original = EC2Backend.describe_instance_type_offerings

    def describe(self: Any, location_type: str | None = None, filters: dict[str, Any] | None = None) -> list[Any]:
        found = original(self, location_type, filters)
        if location_type != "availability-zone":
            return found
        return [
            each for each in found if each["Location"] in STATE.offerings.get(each["InstanceType"], [each["Location"]])
        ]

    EC2Backend.describe_instance_type_offerings = describe  # type: ignore[method-assign]


def _ec2_quotas() -> None:
    get, list_defaults = ServiceQuotasBackend.get_service_quota, ServiceQuotasBackend.list_aws_default_service_quotas

    def quota(self: Any, code: str) -> dict[str, Any]:
        return {
            "ServiceCode": "ec2",
            "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
            "QuotaArn": f"arn:aws:servicequotas:{self.region_name}:{ACCOUNT}:ec2/{code}",
            "QuotaCode": code,
            "QuotaName": QUOTAS[code][0],
            "Value": STATE.quotas[code],
            "Unit": "None",
            "Adjustable": True,
            "GlobalQuota": False,
        }

    def get_service_quota(self: Any, service_code: str, quota_code: str) -> dict[str, Any]:
        if service_code != "ec2":
            return get(self, service_code, quota_code)
        if quota_code not in QUOTAS:
            raise NoSuchResource
        return quota(self, quota_code)

    def list_quotas(self: Any, service_code: str) -> list[dict[str, Any]]:
        if service_code != "ec2":
            return list_defaults(self, service_code)
        return [quota(self, code) for code in QUOTAS]

    def list_service_quotas(self: Any) -> str:
        code = json.loads(self.body)["ServiceCode"]
        return json.dumps({"Quotas": self.backend.list_aws_default_service_quotas(code)})

    def get_default(self: Any) -> str:
        params = json.loads(self.body)
        found = self.backend.get_service_quota(params["ServiceCode"], params["QuotaCode"])
        return json.dumps({"Quota": {**found, "Value": QUOTAS[params["QuotaCode"]][1]}})

    ServiceQuotasBackend.get_service_quota = get_service_quota  # type: ignore[method-assign]
    ServiceQuotasBackend.list_aws_default_service_quotas = list_quotas  # type: ignore[method-assign]
    ServiceQuotasResponse.list_service_quotas = list_service_quotas  # type: ignore[attr-defined]
    ServiceQuotasResponse.get_aws_default_service_quota = get_default  # type: ignore[attr-defined]


def _images_by_name() -> None:
    original = ParameterDict._check_loading_status

    def check(self: Any, key: str) -> None:
        original(self, key)
        if getattr(self, "_stand_in_loaded", False):
            return
        self._stand_in_loaded = True
        for name, image in IMAGES.items():
            parameter = Parameter(
                account_id=self.account_id,
                name=name,
                value=IMAGE_IDS[image],
                parameter_type="String",
                description=None,
                allowed_pattern=None,
                keyid=None,
                last_modified_date=datetime.now(UTC) - timedelta(days=30),
                version=1,
                data_type="aws:ec2:image",
            )
            dict.__setitem__(self, name, [parameter])

    ParameterDict._check_loading_status = check  # type: ignore[method-assign]


def _nat_gateways_that_let_go() -> None:
    original = NatGatewayBackend.delete_nat_gateway

    def delete(self: Any, nat_gateway_id: str) -> Any:
        if nat_gateway_id not in self.nat_gateways:
            raise Refused("NatGatewayNotFound", f"NAT gateway {nat_gateway_id} was not found")
        gateway = original(self, nat_gateway_id)
        for address in self.addresses:
            if address.eni is gateway._eni:
                address.eni = address.association_id = None
        self.enis.pop(gateway._eni.id, None)
        return gateway

    EC2Backend.delete_nat_gateway = delete  # type: ignore[method-assign]


def _endpoints_without_their_route_tables() -> None:
    """Moto can't delete an endpoint whose route, or whose route table, went before it. AWS can."""
    original = EC2Backend.delete_vpc_endpoints

    def delete(self: Any, vpce_ids: Any = None) -> Any:
        for number in vpce_ids or []:
            endpoint = self.vpc_end_points.get(number)
            for table in (endpoint.route_table_ids or []) if endpoint else []:
                with contextlib.suppress(EC2ClientError):
                    self.delete_route(table, endpoint.destination_prefix_list_id)
            if endpoint:
                endpoint.route_table_ids = []
        return original(self, vpce_ids)

    EC2Backend.delete_vpc_endpoints = delete  # type: ignore[method-assign]
