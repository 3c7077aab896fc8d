"""Compute v1: the methods that this double plays. Any other of the API's methods is refused by name (400)."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Iterable

from tests.stand_ins.gcp import catalogue, instance_rules, instances, offers, pages, rules
from tests.stand_ins.gcp.cloud import Cloud
from tests.stand_ins.gcp.errors import (
    GcpError,
    already_exists,
    in_use,
    invalid,
    not_found,
    not_in_the_stand_in,
)
from tests.stand_ins.gcp.schemas import Request
from tests.stand_ins.gcp.store import KINDS, Body, Kind, Operation, link, parts_of

_OPERATIONS = {"zoneOperations": "zones", "regionOperations": "regions", "globalOperations": "global"}


def answer(cloud: Cloud, request: Request) -> Body:
    """The JSON that Compute answers."""
    if request.arguments.get("project") not in (catalogue.PROJECT, *(each[0] for each in catalogue.IMAGES)):
        raise GcpError(404, "notFound", f"The resource 'projects/{request.arguments.get('project')}' was not found")
    _, resource, verb = request.method.id.split(".")
    if resource in _OPERATIONS:
        return _operation(cloud, request, resource, verb)
    if resource in KINDS and verb in _VERBS:
        return _VERBS[verb](cloud, request, KINDS[resource])
    if resource in offers.OFFERS and verb in ("get", "list", "aggregatedList", "getFromFamily"):
        return offers.answer(cloud, request, resource, verb)
    raise not_in_the_stand_in(request.method.id)


# -- what a program makes ---------------------------------------------------------------------------------------------


def _path(request: Request, kind: Kind) -> str:
    item = request.arguments.get(kind.item) or request.arguments["resource"]
    return f"projects/{request.arguments['project']}/{pages.scope(request, kind.scope)}/{kind.collection}/{item}"


def _once(cloud: Cloud, request: Request, work: Callable[[], Operation]) -> Body:
    """`work`, unless a request with this requestId did it before: then that one's operation, as it is now."""
    wanted = request.query.get("requestId")
    if wanted is None:
        return copy.deepcopy(work().body)
    try:
        if uuid.UUID(wanted).int == 0:
            raise ValueError
    except ValueError:
        raise invalid("requestId", wanted, "Must be a valid UUID, and not zero.") from None
    key = (request.method.id, wanted)
    if key not in cloud.store.requests:
        cloud.store.requests[key] = work()
    return copy.deepcopy(cloud.store.requests[key].body)


def _insert(cloud: Cloud, request: Request, kind: Kind) -> Body:
    body = copy.deepcopy(request.body)
    project, scope = request.arguments["project"], pages.scope(request, kind.scope)

    def work() -> Operation:
        rules.name(body)
        path = f"projects/{project}/{scope}/{kind.collection}/{body['name']}"
        cloud.store.step(path)
        if path in cloud.store.resources:
            raise already_exists(path)
        if "labels" in body or kind.collection in ("instances", "disks"):
            rules.labels(body.get("labels"))
            body["labelFingerprint"] = "1"
        body.update(kind=f"compute#{kind.item}", id=cloud.store.new_id(), creationTimestamp=cloud.store.now())
        body["selfLink"] = link(path)
        if scope != "global":
            body[kind.scope[:-1]] = link(f"projects/{project}/{scope}")
        if kind.collection == "instances":
            instance_rules.instance(cloud, project, scope.partition("/")[2], body)
            launched = instances.launch(cloud, path, body)
            _hide(cloud, request, path)
            return launched
        rules.RULES[kind.collection](cloud, project, scope, body)
        _hide(cloud, request, path)
        errors = cloud.quotas.exceeded(cloud.store, path, body)
        if kind.collection == "addresses":
            _give_address(cloud, body, path)
        cloud.store.resources[path] = body

        def end() -> None:
            if errors:
                del cloud.store.resources[path]

        return cloud.store.begin("insert", path, end, errors=errors, http=(403, "FORBIDDEN"))

    return _once(cloud, request, work)


def _hide(cloud: Cloud, request: Request, path: str) -> None:
    """Eventual consistency, where a test ordered it."""
    reads = cloud.faults.taken(cloud.faults.hide, request.method.id)
    if reads:
        cloud.store.hidden[path] = reads


def _give_address(cloud: Cloud, body: Body, path: str) -> None:
    if body["addressType"] == "EXTERNAL":
        body["address"] = cloud.external_address()
    elif not body.get("address"):
        raise not_in_the_stand_in(f"choosing the internal address of {path}; give one")


def _get(cloud: Cloud, request: Request, kind: Kind) -> Body:
    return shown(cloud, _path(request, kind))


def shown(cloud: Cloud, path: str) -> Body:
    """A resource as it is answered: a network with its subnets, a policy and an address with its users."""
    body = copy.deepcopy(instances.shown(cloud.store.read(path)))
    collection = path.split("/")[-2]
    if collection == "networks":
        users = [link(user) for user in cloud.store.users_of(path) if "/subnetworks/" in user]
        if users:
            body["subnetworks"] = users
    return body


def _list(cloud: Cloud, request: Request, kind: Kind) -> Body:
    prefix = f"projects/{request.arguments['project']}/{pages.scope(request, kind.scope)}/{kind.collection}/"
    bodies = _visible(cloud, [path for path in cloud.store.resources if path.startswith(prefix)])
    return pages.page(request, f"compute#{kind.item}List", bodies)


def _visible(cloud: Cloud, paths: Iterable[str]) -> list[Body]:
    paths = [path for path in paths if cloud.store.visible(path)]
    return [copy.deepcopy(instances.shown(cloud.store.resources[path])) for path in sorted(paths)]


def _aggregated(cloud: Cloud, request: Request, kind: Kind) -> Body:
    project = request.arguments["project"]
    bodies = _visible(cloud, [path for path, _ in cloud.store.of(kind.collection, project)])
    return pages.by_scope(request, kind.collection, kind.item, kind.scope, bodies)


def _delete(cloud: Cloud, request: Request, kind: Kind) -> Body:
    path = _path(request, kind)

    def work() -> Operation:
        cloud.store.step(path)
        if path not in cloud.store.resources:
            raise not_found(path)
        cloud.faults.in_use(request.method.id, kind.item, path)
        if kind.collection == "instances":
            running = [
                op
                for op in cloud.store.operations.values()
                if op.target == path and op.body["operationType"] == "delete" and op.body["status"] != "DONE"
            ]
            return running[0] if running else instances.delete(cloud, path)
        body = cloud.store.resources[path]
        users = cloud.store.users_of(path)
        users += [user.partition("compute/v1/")[2] for user in body.get("users", [])]
        if int((body.get("specificReservation") or {}).get("inUseCount") or 0):
            users.append("an instance")
        if users:
            raise in_use(kind.item, path, sorted(users)[0])
        return cloud.store.begin("delete", path, lambda: cloud.store.resources.pop(path, None))  # type: ignore[arg-type,return-value]

    return _once(cloud, request, work)


def _set_labels(cloud: Cloud, request: Request, kind: Kind) -> Body:
    path = _path(request, kind)

    def work() -> Operation:
        body = cloud.store.read(path)
        if request.body.get("labelFingerprint") != body.get("labelFingerprint", "1"):
            raise GcpError(412, "conditionNotMet", "Labels fingerprint either invalid or resource labels have changed")
        rules.labels(request.body.get("labels"))
        body["labels"] = request.body.get("labels") or {}
        body["labelFingerprint"] = str(int(body.get("labelFingerprint", "1")) + 1)
        return cloud.store.begin("setLabels", path, lambda: None)

    return _once(cloud, request, work)


def _patch(cloud: Cloud, request: Request, kind: Kind) -> Body:
    """patch and update: the given fields replace those there, and the whole is judged again."""
    if kind.collection in ("instances", "disks", "reservations", "resourcePolicies", "networks"):
        raise not_in_the_stand_in(request.method.id)
    path = _path(request, kind)

    def work() -> Operation:
        old = cloud.store.read(path)
        new = copy.deepcopy({**old, **request.body})
        for fixed in ("name", "network", "region"):
            if fixed in old and new[fixed] != old[fixed] and not str(old[fixed]).endswith(f"/{new[fixed]}"):
                raise invalid(f"resource.{fixed}", new[fixed], "This field can't be changed.")
        del cloud.store.resources[path]  # so that it isn't compared with itself
        try:
            rules.RULES[kind.collection](cloud, request.arguments["project"], parts_of(path)[0], new)
        finally:
            cloud.store.resources[path] = old
        cloud.store.resources[path] = new
        return cloud.store.begin("patch", path, lambda: None)

    return _once(cloud, request, work)


def _stop(cloud: Cloud, request: Request, kind: Kind) -> Body:
    path = _path(request, kind)
    cloud.store.read(path)
    return _once(cloud, request, lambda: instances.stop(cloud, path))


def _guest(cloud: Cloud, request: Request, kind: Kind) -> Body:
    return instances.guest_attributes(cloud, _path(request, kind), request.query.get("queryPath", ""))


_VERBS: dict[str, Callable[[Cloud, Request, Kind], Body]] = {
    "insert": _insert,
    "get": _get,
    "list": _list,
    "aggregatedList": _aggregated,
    "delete": _delete,
    "setLabels": _set_labels,
    "patch": _patch,
    "update": _patch,
    "stop": _stop,
    "getGuestAttributes": _guest,
}


# -- operations -------------------------------------------------------------------------------------------------------


def _operation(cloud: Cloud, request: Request, resource: str, verb: str) -> Body:
    prefix = f"projects/{request.arguments['project']}/{pages.scope(request, _OPERATIONS[resource])}/operations/"
    if verb == "list":
        found = [copy.deepcopy(op.body) for path, op in cloud.store.operations.items() if path.startswith(prefix)]
        return pages.page(request, "compute#operationList", found)
    path = prefix + request.arguments["operation"]
    if path not in cloud.store.operations:
        raise not_found(path)
    operation = cloud.store.operations[path]
    if verb not in ("get", "wait"):
        raise not_in_the_stand_in(request.method.id)
    if operation.body["status"] != "DONE":
        cloud.store.tick(operation)
    return copy.deepcopy(operation.body)
