"""What a resource's inputs may be, read from the typed argument classes of the SDK itself: pulumi_aws, pulumi_gcp.

Rejects: an unknown argument at any depth, a missing required one, a value of the wrong type. Stricter than the real
provider where that converts ("22" for a number, True for a string). Can't: enumerations, formats and arguments that
exclude one another, which the real provider checks in its own code; the cloud's answer to the call is what's left.
"""

from __future__ import annotations

import collections.abc
import enum
import functools
import importlib
import importlib.util
import inspect
import json
import os
import re
import sys
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pulumi.runtime.rpc import UNKNOWN

INTERNAL = ("__internal", "__defaults")
# A folder for what was read, because the SDK's classes take seconds to import and a plug-in lives for seconds.
CACHE = "TRAINSTACK_TEST_SCHEMAS"
Spec = dict[str, Any]
"""{"is": "str" | "bool" | "int" | "float" | "any"}, {"list": spec}, {"map": spec}, {"one of": [spec]} or
{"object": {name: spec}, "required": [name]}."""


@dataclass(frozen=True)
class Schema:
    """One resource type of the SDK."""

    token: str
    arguments: Spec
    outputs: frozenset[str]
    """Names of all its properties, inputs included."""

    @property
    def inputs(self) -> frozenset[str]:
        return frozenset(self.arguments["object"])


@functools.cache
def of(token: str) -> Schema:
    """The schema of "aws:ec2/vpc:Vpc". Raises LookupError when the SDK has no such type."""
    folder = os.environ.get(CACHE)
    cached = Path(folder) / f"{re.sub(r'[^a-zA-Z]', '-', token)}.json" if folder else None
    if cached is not None and cached.exists():
        read = json.loads(cached.read_text())
        return Schema(token, read["arguments"], frozenset(read["outputs"]))
    schema = _from_sdk(token)
    if cached is not None:
        unfinished = cached.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps({"arguments": schema.arguments, "outputs": sorted(schema.outputs)}))
        unfinished.replace(cached)
    return schema


def import_alone(sdk: str, package: str) -> None:
    """Let modules of a package of "pulumi_gcp" be imported one by one: it imports hundreds, which takes seconds.

    Only for a process of our own: nothing else in it sees the package whole from now on.
    """
    importlib.import_module(sdk)
    name = f"{sdk}.{package}"
    root = importlib.util.find_spec(sdk)
    assert root is not None
    assert root.submodule_search_locations is not None
    bare = types.ModuleType(name)
    bare.__path__ = [str(Path(root.submodule_search_locations[0]) / package)]
    bare.__package__ = name
    sys.modules[name] = bare


def failures(token: str, inputs: dict[str, Any]) -> list[tuple[str, str]]:
    """(property, reason) of each wrong input; empty when all are right. Unknown values (a preview's) pass."""
    return list(_object(of(token).arguments, inputs, ""))


# -- checking ---------------------------------------------------------------------------------------------------------


def _object(spec: Spec, value: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for key, each in value.items():
        if key in INTERNAL:
            continue
        where = f"{path}{key}"
        if key not in spec["object"]:
            yield where, f"An argument named {key!r} is not expected here"
        else:
            yield from _value(spec["object"][key], each, where)
    for name in spec["required"]:
        if value.get(name) is None:
            yield f"{path}{name}", f"Missing required argument: {name!r} is required, but no definition was found"


def _value(spec: Spec, value: Any, where: str) -> Iterator[tuple[str, str]]:
    if value == UNKNOWN or value is None:
        return
    problems = [list(_one(option, value, where)) for option in spec.get("one of", [spec])]
    if problems and all(problems):
        yield from min(problems, key=len)


def _one(spec: Spec, value: Any, where: str) -> Iterator[tuple[str, str]]:
    if "object" in spec:
        if isinstance(value, dict):
            yield from _object(spec, value, f"{where}.")
        else:
            yield where, f"expected an object, got {value!r}"
    elif "list" in spec:
        if not isinstance(value, list):
            yield where, f"expected a list, got {value!r}"
            return
        for index, each in enumerate(value):
            yield from _value(spec["list"], each, f"{where}[{index}]")
    elif "map" in spec:
        if not isinstance(value, dict):
            yield where, f"expected a map, got {value!r}"
            return
        for key, each in value.items():
            yield from _value(spec["map"], each, f"{where}[{key!r}]")
    elif not _is(spec["is"], value):
        yield where, f"expected {spec['is']}, got {value!r}"


def _is(kind: str, value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return {
        "str": isinstance(value, str),
        "bool": isinstance(value, bool),
        "int": number and float(value).is_integer(),
        "float": number,
    }.get(kind, True)


# -- reading the SDK --------------------------------------------------------------------------------------------------


def _from_sdk(token: str) -> Schema:
    found = re.fullmatch(r"(aws|gcp):(\w+)/(\w+):(\w+)", token)
    if found is None:
        raise LookupError(f"not a resource type of an SDK: {token}")
    sdk, package, module, name = found.groups()
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", module).lower()
    snake = snake.replace("bucket_iammember", "bucket_iam_member")
    try:
        python = importlib.import_module(f"pulumi_{sdk}.{package}.{snake}")
        resource, arguments = getattr(python, name), getattr(python, f"{name}Args")
    except (ImportError, AttributeError) as error:
        raise LookupError(f"pulumi_{sdk} has no {token}") from error
    outputs = {
        getattr(value.fget, "_pulumi_name", key) for key, value in vars(resource).items() if isinstance(value, property)
    }
    return Schema(token, _spec(arguments), frozenset(outputs))


def _spec(expected: Any) -> Spec:
    from pulumi._types import input_type_py_to_pulumi_names, input_type_types, is_input_type

    options = _options(expected)
    if len(options) != 1:
        return {"one of": [_spec(option) for option in options]}
    (option,) = options
    origin, inside = typing.get_origin(option), typing.get_args(option)
    if isinstance(option, type) and is_input_type(option):
        names = input_type_py_to_pulumi_names(option)
        parameters = inspect.signature(option.__init__).parameters.values()
        required = [
            names.get(each.name, each.name)
            for each in parameters
            if each.kind is inspect.Parameter.KEYWORD_ONLY and each.default is inspect.Parameter.empty
        ]
        return {
            "object": {key: _spec(value) for key, value in input_type_types(option).items()},
            "required": required,
        }
    if origin in (collections.abc.Sequence, list):
        return {"list": _spec(inside[0])}
    if origin in (collections.abc.Mapping, dict):
        return {"map": _spec(inside[1])}
    if isinstance(option, type) and issubclass(option, enum.Enum):
        return {"is": "str"}
    return {"is": option.__name__ if option in (str, bool, int, float) else "any"}


def _options(expected: Any) -> list[Any]:
    """The alternatives of a Union, without the ways in which the SDK lets a value come later."""
    if typing.get_origin(expected) in (typing.Union, types.UnionType):
        return [
            option
            for each in typing.get_args(expected)
            for option in _options(each)
            if typing.get_origin(option) is not collections.abc.Awaitable and "Output" not in repr(option)
        ]
    return [] if expected is type(None) else [expected]
