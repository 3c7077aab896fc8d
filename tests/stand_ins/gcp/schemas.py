"""The published discovery documents: which requests there are, and whether a body is one that Google would read.

They come with google-api-python-client. They say names, types, enums and patterns; they hardly say what is required
and nothing of what fits together: that is in rules.py and the `_rules` modules. A "[Output Only]" field in a body is
let pass, as Google lets it.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import googleapiclient.discovery_cache

from tests.stand_ins.gcp.errors import GcpError, invalid

_DOCUMENTS = Path(googleapiclient.discovery_cache.__file__).parent / "documents"
# API -> (document, what stands before the paths on our port)
APIS = {
    "compute": ("compute.v1.json", "compute/v1/"),
    "file": ("file.v1.json", ""),
    "storage": ("storage.v1.json", "storage/v1/"),
    "iam": ("iam.v1.json", ""),
    "cloudbilling": ("cloudbilling.v1.json", ""),
    "serviceusage": ("serviceusage.v1.json", ""),
    "cloudresourcemanager": ("cloudresourcemanager.v1.json", ""),
    "cloudresourcemanager/3": ("cloudresourcemanager.v3.json", ""),
}


@dataclass(frozen=True, kw_only=True)
class Method:
    """One method of an API: "compute.instances.insert"."""

    id: str
    api: str
    path: tuple[str, ...]
    query: frozenset[str]
    request: str | None
    """Name of the body's schema."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request, read."""

    method: Method
    arguments: dict[str, str]
    """Out of the path: project, zone, instance."""
    query: dict[str, str]
    body: dict[str, Any]
    number: int = field(default=0, compare=False)


@functools.cache
def document(api: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((_DOCUMENTS / APIS[api][0]).read_text(encoding="utf-8"))
    return loaded


# Cloud Quotas has no discovery document in the package: the one method is written by hand from its reference.
_QUOTA_INFOS = Method(
    id="cloudquotas.projects.locations.services.quotaInfos.list",
    api="cloudquotas",
    path=("v1", "projects", "{projectsId}", "locations", "{locationsId}", "services", "{servicesId}", "quotaInfos"),
    query=frozenset({"pageSize", "pageToken"}),
    request=None,
)


@functools.cache
def _methods() -> dict[tuple[str, int], list[Method]]:
    """By HTTP verb and number of path segments; those with fewer variables first, for `family/{family}`."""
    found: dict[tuple[str, int], list[Method]] = {("GET", len(_QUOTA_INFOS.path)): [_QUOTA_INFOS]}

    def walk(api: str, node: dict[str, Any], prefix: str, common: frozenset[str]) -> None:
        for raw in node.get("methods", {}).values():
            path = tuple((prefix + raw.get("flatPath", raw["path"])).split("/"))
            query = frozenset(n for n, p in raw.get("parameters", {}).items() if p["location"] == "query") | common
            method = Method(
                id=raw["id"],
                api=api.partition("/")[0],
                path=path,
                query=query,
                request=raw.get("request", {}).get("$ref"),
            )
            found.setdefault((raw["httpMethod"], len(path)), []).append(method)
        for child in node.get("resources", {}).values():
            walk(api, child, prefix, common)

    for api, (_, prefix) in APIS.items():
        walk(api, document(api), prefix, frozenset(document(api).get("parameters", {})))
    for methods in found.values():
        methods.sort(key=lambda method: sum(part.startswith("{") for part in method.path))
    return found


def find_method(verb: str, path: str) -> tuple[Method, dict[str, str]]:
    """The method that a request is of; 404 with Google's words when there is none."""
    parts = path.strip("/").split("/")
    for method in _methods().get((verb, len(parts)), []):
        arguments = _match(method.path, parts)
        if arguments is not None:
            return method, arguments
    raise GcpError(404, "notFound", f"The requested URL {path} was not found on this server.")


def _match(template: tuple[str, ...], parts: list[str]) -> dict[str, str] | None:
    arguments = {}
    for wanted, part in zip(template, parts, strict=True):
        if wanted.startswith("{") and "}" in wanted:
            name, _, verb = wanted[1:].partition("}")
            if not part.endswith(verb) or (not verb and ":" in part and "@" not in part):
                return None
            arguments[name.lstrip("+")] = part[: len(part) - len(verb)]
        elif wanted != part:
            return None
    return arguments


def check(method: Method, query: dict[str, str], body: Any) -> None:
    """Raise what Google's front end answers to a parameter or a body that isn't in the document."""
    for name in query:
        if name not in method.query:
            raise _unreadable(f'Unknown name "{name}": Cannot bind query parameter. Field not found.')
    if method.request is None:
        if body:
            raise _unreadable(f"{method.id} takes no body")
        return
    if not isinstance(body, dict):
        raise GcpError(400, "parseError", "Parse Error")
    _object(method.api, method.request, body, "resource")


def check_part(api: str, schema: str, body: Any, where: str) -> None:
    """The same for a body against a schema called by name."""
    _object(api, schema, body, where)


def _unreadable(why: str) -> GcpError:
    return GcpError(400, "badRequest", f"Invalid JSON payload received. {why}")


def _object(api: str, schema_name: str, value: Any, where: str) -> None:
    _value(api, {"$ref": schema_name}, value, where)


def _value(api: str, schema: dict[str, Any], value: Any, where: str) -> None:
    if "$ref" in schema:
        schema = document(api)["schemas"][schema["$ref"]]
    if value is None:
        return  # null is "not given" in Google's JSON
    kind = schema["type"]
    if kind == "object":
        _members(api, schema, value, where)
    elif kind == "array":
        if not isinstance(value, list):
            raise _unreadable(
                f"Unknown name \"{where.rpartition('.')[2]}\" at '{where}': Proto field is repeated, not {value!r}."
            )
        for index, each in enumerate(value):
            _value(api, schema["items"], each, f"{where}[{index}]")
    elif kind != "any":
        _scalar(schema, value, where)


def _members(api: str, schema: dict[str, Any], value: Any, where: str) -> None:
    if not isinstance(value, dict):
        raise _unreadable(f"Invalid value at '{where}' (TYPE_MESSAGE), {value!r}")
    properties = schema.get("properties", {})
    for name, each in value.items():
        if name in properties:
            _value(api, properties[name], each, f"{where}.{name}")
        elif "additionalProperties" in schema:
            _value(api, schema["additionalProperties"], each, f"{where}.{name}")
        else:
            raise _unreadable(f"Unknown name \"{name}\" at '{where}': Cannot find field.")


def _scalar(schema: dict[str, Any], value: Any, where: str) -> None:
    kind, form = schema["type"], schema.get("format", "")
    whole = isinstance(value, int) and not isinstance(value, bool)
    if kind == "string" and form in ("int64", "uint64"):
        good = whole or (isinstance(value, str) and re.fullmatch(r"-?\d+", value) is not None)
    elif kind == "string":
        good = isinstance(value, str)
    elif kind == "integer":
        good = whole
    elif kind == "number":
        good = whole or isinstance(value, float)
    else:
        good = isinstance(value, bool)
    if not good:
        raise _unreadable(f"Invalid value at '{where}' (TYPE_{(form or kind).upper()}), {json.dumps(value)}")
    if "enum" in schema and value not in schema["enum"]:
        raise invalid(where, value, f"Must be one of [{', '.join(schema['enum'])}]")
    if "pattern" in schema and not re.fullmatch(schema["pattern"], str(value)):
        raise invalid(where, value, f"Must be a match of regex '{schema['pattern']}'")
