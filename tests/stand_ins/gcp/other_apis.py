"""The small parts of Google's other APIs: quotas, prices, projects, services, Filestore, buckets, service accounts."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

from tests.stand_ins.gcp import catalogue, rules
from tests.stand_ins.gcp.cloud import Cloud
from tests.stand_ins.gcp.errors import GcpError, invalid, not_found, not_in_the_stand_in, required
from tests.stand_ins.gcp.schemas import Request
from tests.stand_ins.gcp.store import Body

# Least GB of a file share by tier [doc: Filestore service tiers]
_FILE_TIERS = {"BASIC_HDD": 1024, "BASIC_SSD": 2560, "ZONAL": 1024, "REGIONAL": 1024, "ENTERPRISE": 1024}
_IN_REGIONS = ("REGIONAL", "ENTERPRISE")
_COMPUTE_SERVICE = "6F81-5844-456A"


def answer(cloud: Cloud, request: Request) -> Body | None:
    """The JSON that Google answers; None for 204."""
    method = _METHODS.get(request.method.id)
    if method is None:
        raise not_in_the_stand_in(request.method.id)
    for name in ("projectsId", "projectId", "v1Id1"):
        if request.arguments.get(name) not in (None, catalogue.PROJECT, catalogue.PROJECT_NUMBER):
            raise GcpError(403, "forbidden", f"Permission denied on resource project {request.arguments[name]}.")
    return method(cloud, request)


# -- read only --------------------------------------------------------------------------------------------------------


def _quota_infos(cloud: Cloud, request: Request) -> Body:
    if request.arguments["servicesId"] != "compute.googleapis.com" or request.arguments["locationsId"] != "global":
        raise not_in_the_stand_in("quotas of other services and locations")
    return _page(request, "quotaInfos", cloud.quotas.infos())


def _skus(cloud: Cloud, request: Request) -> Body:
    del cloud
    if request.arguments["servicesId"] != _COMPUTE_SERVICE:
        raise GcpError(404, "notFound", f"Service {request.arguments['servicesId']} was not found.")
    skus = [
        {
            "name": f"services/{_COMPUTE_SERVICE}/skus/0000-0000-{index:04d}",
            "skuId": f"0000-0000-{index:04d}",
            "description": description,
            "category": {
                "serviceDisplayName": "Compute Engine",
                "resourceFamily": "Compute" if group != "SSD" else "Storage",
                "resourceGroup": group,
                "usageType": usage,
            },
            "serviceRegions": ["us-central1", "us-west1"],
            "pricingInfo": [
                {
                    "effectiveTime": "2026-12-01T00:00:00Z",
                    "pricingExpression": {
                        "usageUnit": unit,
                        "tieredRates": [
                            {
                                "startUsageAmount": 0,
                                "unitPrice": {
                                    "currencyCode": "USD",
                                    "units": str(int(usd)),
                                    "nanos": round((usd - int(usd)) * 1e9),
                                },
                            }
                        ],
                    },
                }
            ],
            "serviceProviderName": "Google",
        }
        for index, (description, group, usage, unit, usd) in enumerate(catalogue.SKUS)
    ]
    return _page(request, "skus", skus)


def _page(request: Request, key: str, items: list[Any]) -> Body:
    start, size = int(request.query.get("pageToken") or 0), int(request.query.get("pageSize") or 5000)
    page: Body = {key: items[start : start + size]}
    if len(items) > start + size:
        page["nextPageToken"] = str(start + size)
    return page


def _project(cloud: Cloud, request: Request) -> Body:
    del cloud
    if request.method.path[0] == "v3":
        return {
            "name": f"projects/{catalogue.PROJECT_NUMBER}",
            "projectId": catalogue.PROJECT,
            "state": "ACTIVE",
            "displayName": "trainstack test",
        }
    return {
        "projectNumber": catalogue.PROJECT_NUMBER,
        "projectId": catalogue.PROJECT,
        "lifecycleState": "ACTIVE",
        "name": "trainstack test",
    }


def _service(cloud: Cloud, request: Request) -> Body:
    service = request.arguments["servicesId"]
    off = service.removesuffix(".googleapis.com") in cloud.faults.apis_off
    return {
        "name": f"projects/{catalogue.PROJECT_NUMBER}/services/{service}",
        "parent": f"projects/{catalogue.PROJECT_NUMBER}",
        "config": {"name": service},
        "state": "DISABLED" if off else "ENABLED",
    }


# -- Filestore --------------------------------------------------------------------------------------------------------


def _filestore_path(request: Request) -> str:
    return (
        f"projects/{catalogue.PROJECT}/locations/{request.arguments['locationsId']}/instances/"
        f"{request.arguments['instancesId']}"
    )


def _filestore_create(cloud: Cloud, request: Request) -> Body:
    body, place = copy.deepcopy(request.body), request.arguments["locationsId"]
    name = request.query.get("instanceId", "")
    if not rules.NAME.fullmatch(name):
        raise invalid("instanceId", name, "Must be a match of the regex of a name.")
    tier = body.get("tier")
    if tier not in _FILE_TIERS:
        raise invalid("instance.tier", tier, f"Must be one of {', '.join(_FILE_TIERS)}.")
    if place not in (catalogue.ZONES if tier in _IN_REGIONS else catalogue.all_zones()):
        raise invalid("parent", place, f"The location isn't valid for tier {tier}.")
    shares, networks = body.get("fileShares") or [], body.get("networks") or []
    if len(shares) != 1 or len(networks) != 1:
        raise invalid("instance", "", "Exactly one file share and one network must be specified.")
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,15}", shares[0].get("name", "")):
        raise invalid("instance.fileShares[0].name", shares[0].get("name"), "Up to 16 letters, digits, underscores.")
    if int(shares[0].get("capacityGb") or 0) < _FILE_TIERS[tier]:
        raise invalid(
            "instance.fileShares[0].capacityGb", shares[0].get("capacityGb"), f"At least {_FILE_TIERS[tier]}."
        )
    if not networks[0].get("modes"):
        raise required("instance.networks[0].modes")
    rules.labels(body.get("labels"), "instance.labels")
    wanted = str(networks[0].get("network", "")).rpartition("/")[2]
    if f"projects/{catalogue.PROJECT}/global/networks/{wanted}" not in cloud.store.resources:
        raise invalid("instance.networks[0].network", networks[0].get("network"), "Network not found.")
    path = f"projects/{catalogue.PROJECT}/locations/{place}/instances/{name}"
    if path in cloud.filestores:
        raise GcpError(409, "alreadyExists", f"Resource '{path}' already exists")
    networks[0]["ipAddresses"] = ["10.255.0.2"]
    cloud.filestores[path] = {**body, "name": path, "state": "READY", "createTime": cloud.store.now()}
    return _long(path, cloud.store.new_id())


def _long(path: str, number: str) -> Body:
    """A long-running operation, not done yet: its get is."""
    place = path.partition("/instances/")[0]
    return {"name": f"{place}/operations/operation-{number}", "metadata": {"target": path}, "done": False}


def _filestore_operation(cloud: Cloud, request: Request) -> Body:
    del cloud
    arguments = request.arguments
    name = f"projects/{catalogue.PROJECT}/locations/{arguments['locationsId']}/operations/{arguments['operationsId']}"
    return {"name": name, "done": True, "response": {"@type": "type.googleapis.com/google.protobuf.Empty"}}


def _filestore_get(cloud: Cloud, request: Request) -> Body:
    path = _filestore_path(request)
    if path not in cloud.filestores:
        raise not_found(path)
    return copy.deepcopy(cloud.filestores[path])


def _filestore_list(cloud: Cloud, request: Request) -> Body:
    place = request.arguments["locationsId"]
    found = [body for path, body in cloud.filestores.items() if place == "-" or f"/locations/{place}/" in path]
    if request.query.get("filter"):
        raise not_in_the_stand_in("filters of Filestore")
    return _page(request, "instances", found)


def _filestore_delete(cloud: Cloud, request: Request) -> Body:
    path = _filestore_path(request)
    if path not in cloud.filestores:
        raise not_found(path)
    cloud.faults.in_use(request.method.id, "instance", path)
    del cloud.filestores[path]
    return _long(path, cloud.store.new_id())


# -- buckets ----------------------------------------------------------------------------------------------------------


def _bucket(cloud: Cloud, request: Request) -> Body:
    name = request.arguments["bucket"]
    if name not in cloud.buckets:
        raise GcpError(404, "notFound", "The specified bucket does not exist.")
    return cloud.buckets[name]


def _bucket_insert(cloud: Cloud, request: Request) -> Body:
    body = copy.deepcopy(request.body)
    name = body.get("name", "")
    if request.query.get("project") != catalogue.PROJECT:
        raise GcpError(400, "required", "Required parameter: project")
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]", name) or "goog" in name[:4]:
        raise GcpError(400, "invalid", f"Invalid bucket name: '{name}'")
    rules.labels(body.get("labels"), "labels")
    if name in cloud.buckets:
        message = "Your previous request to create the named bucket succeeded and you already own it."
        raise GcpError(409, "conflict", message)
    body.update(kind="storage#bucket", id=name, timeCreated=cloud.store.now(), metageneration="1")
    body["location"] = body.get("location", "US").upper()
    body.setdefault("storageClass", "STANDARD")
    # Seven days of soft delete that bill are the default [facts GCP 10].
    body.setdefault("softDeletePolicy", {"retentionDurationSeconds": "604800"})
    cloud.buckets[name] = body
    return copy.deepcopy(body)


def _bucket_list(cloud: Cloud, request: Request) -> Body:
    prefix = request.query.get("prefix", "")
    found = [body for name, body in sorted(cloud.buckets.items()) if name.startswith(prefix)]
    return {"kind": "storage#buckets", "items": copy.deepcopy(found)} if found else {"kind": "storage#buckets"}


def _bucket_patch(cloud: Cloud, request: Request) -> Body:
    body = _bucket(cloud, request)
    rules.labels({key: value for key, value in (request.body.get("labels") or {}).items() if value is not None})
    body.update(copy.deepcopy(request.body))
    return copy.deepcopy(body)


def _bucket_delete(cloud: Cloud, request: Request) -> None:
    _bucket(cloud, request)
    name = request.arguments["bucket"]
    if cloud.objects.get(name):
        raise GcpError(409, "conflict", "The bucket you tried to delete is not empty.")
    del cloud.buckets[name]
    cloud.iam.pop(name, None)


def _objects(cloud: Cloud, request: Request) -> Body:
    _bucket(cloud, request)
    names = cloud.objects.get(request.arguments["bucket"], [])
    return {"kind": "storage#objects", "items": [{"name": name, "generation": "1"} for name in names]}


def _object_delete(cloud: Cloud, request: Request) -> None:
    names = cloud.objects.get(request.arguments["bucket"], [])
    if request.arguments["object"] not in names:
        raise GcpError(404, "notFound", f"No such object: {request.arguments['object']}")
    names.remove(request.arguments["object"])


def _policy(cloud: Cloud, request: Request) -> Body:
    _bucket(cloud, request)
    bindings = copy.deepcopy(cloud.iam.get(request.arguments["bucket"], []))
    return {"kind": "storage#policy", "etag": "CAE=", "version": 1, "bindings": bindings}


def _set_policy(cloud: Cloud, request: Request) -> Body:
    _bucket(cloud, request)
    cloud.iam[request.arguments["bucket"]] = copy.deepcopy(request.body.get("bindings") or [])
    return _policy(cloud, request)


# -- service accounts -------------------------------------------------------------------------------------------------


def _account_create(cloud: Cloud, request: Request) -> Body:
    name = request.body.get("accountId", "")
    if not re.fullmatch(r"[a-z][-a-z0-9]{4,28}[a-z0-9]", name):
        raise invalid("account_id", name, "Must be 6 to 30 lower-case letters, digits and dashes.")
    email = f"{name}@{catalogue.PROJECT}.iam.gserviceaccount.com"
    path = f"projects/{catalogue.PROJECT}/serviceAccounts/{email}"
    if path in cloud.accounts:
        raise GcpError(409, "alreadyExists", f"Service account {name} already exists within project.")
    asked = request.body.get("serviceAccount") or {}
    cloud.accounts[path] = {
        "name": path,
        "projectId": catalogue.PROJECT,
        "uniqueId": cloud.store.new_id(),
        "email": email,
        "displayName": asked.get("displayName", ""),
        "description": asked.get("description", ""),
    }
    return copy.deepcopy(cloud.accounts[path])


def _account(cloud: Cloud, request: Request) -> str:
    path = f"projects/{catalogue.PROJECT}/serviceAccounts/{request.arguments['serviceAccountsId']}"
    if path not in cloud.accounts:
        raise GcpError(404, "notFound", f"Unknown service account: {path}")
    return path


def _account_get(cloud: Cloud, request: Request) -> Body:
    return copy.deepcopy(cloud.accounts[_account(cloud, request)])


def _account_list(cloud: Cloud, request: Request) -> Body:
    return _page(request, "accounts", list(cloud.accounts.values()))


def _account_delete(cloud: Cloud, request: Request) -> Body:
    del cloud.accounts[_account(cloud, request)]
    return {}


_METHODS: dict[str, Callable[[Cloud, Request], Body | None]] = {
    "cloudquotas.projects.locations.services.quotaInfos.list": _quota_infos,
    "cloudbilling.services.skus.list": _skus,
    "cloudresourcemanager.projects.get": _project,
    "serviceusage.services.get": _service,
    "file.projects.locations.instances.create": _filestore_create,
    "file.projects.locations.instances.get": _filestore_get,
    "file.projects.locations.instances.list": _filestore_list,
    "file.projects.locations.instances.delete": _filestore_delete,
    "file.projects.locations.operations.get": _filestore_operation,
    "storage.buckets.insert": _bucket_insert,
    "storage.buckets.get": lambda cloud, request: copy.deepcopy(_bucket(cloud, request)),
    "storage.buckets.list": _bucket_list,
    "storage.buckets.patch": _bucket_patch,
    "storage.buckets.delete": _bucket_delete,
    "storage.buckets.getIamPolicy": _policy,
    "storage.buckets.setIamPolicy": _set_policy,
    "storage.objects.list": _objects,
    "storage.objects.delete": _object_delete,
    "iam.projects.serviceAccounts.create": _account_create,
    "iam.projects.serviceAccounts.get": _account_get,
    "iam.projects.serviceAccounts.list": _account_list,
    "iam.projects.serviceAccounts.delete": _account_delete,
}
