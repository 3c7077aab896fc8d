"""What a resource's inputs may be, read from pulumi_gcp's own typed argument classes.

Rejects an unknown argument at any depth, a missing required one, a value of the wrong type. Can't: enumerations,
formats, and arguments that exclude one another, which the real provider checks in code of its own.
(Of one shape with stand_ins/aws/schema.py, but not shared: two helpers wrote them at the same time.)
"""

from __future__ import annotations

import collections.abc
import functools
import importlib
import importlib.util
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pulumi._types import input_type_py_to_pulumi_names, input_type_types, is_input_type
from pulumi.runtime.rpc import UNKNOWN

OURS = ("__defaults", "__internal")


@dataclass(frozen=True)
class Schema:
    arguments: type
    outputs: frozenset[str]
    """Names of all its properties, inputs included."""


@functools.cache
def of(token: str) -> Schema:
    """The schema of "gcp:compute/network:Network"; LookupError when the SDK has no such type."""
    found = re.fullmatch(r"gcp:(\w+)/(\w+):(\w+)", token)
    if found is None:
        raise LookupError(f"not a resource type of pulumi_gcp: {token}")
    package, module, name = found.groups()
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", module).lower()
    snake = snake.replace("bucket_iammember", "bucket_iam_member")
    try:
        python = importlib.import_module(f"pulumi_gcp.{package}.{snake}")
        resource, arguments = getattr(python, name), getattr(python, f"{name}Args")
    except (ImportError, AttributeError) as error:
        raise LookupError(f"pulumi_gcp has no {token}") from error
    outputs = {getattr(v.fget, "_pulumi_name", k) for k, v in vars(resource).items() if isinstance(v, property)}
    return Schema(arguments, frozenset(outputs))


def import_alone(package: str) -> None:
    """Let modules of a package be imported one by one: the package imports hundreds, which takes seconds.

    Only for a process of our own: nothing else in it sees the package whole from now on.
    """
    importlib.import_module("pulumi_gcp")
    name = f"pulumi_gcp.{package}"
    root = importlib.util.find_spec("pulumi_gcp")
    assert root is not None
    assert root.submodule_search_locations is not None
    bare = types.ModuleType(name)
    bare.__path__ = [str(Path(root.submodule_search_locations[0]) / package)]
    bare.__package__ = name
    sys.modules[name] = bare


def failures(token: str, inputs: dict[str, Any]) -> list[tuple[str, str]]:
    """(property, reason) of each wrong input. Unknown values (a preview's) pass."""
    return list(_structure(of(token).arguments, inputs, ""))


def _structure(arguments: type, value: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    known = input_type_types(arguments)
    for key, each in value.items():
        if key in OURS:
            continue
        if key not in known:
            yield f"{path}{key}", f"An argument named {key!r} is not expected here"
        elif each is not None:
            yield from _value(known[key], each, f"{path}{key}")
    names = input_type_py_to_pulumi_names(arguments)
    for each in inspect.signature(arguments.__init__).parameters.values():
        wanted = each.kind is inspect.Parameter.KEYWORD_ONLY and each.default is inspect.Parameter.empty
        if wanted and value.get(names.get(each.name, each.name)) is None:
            yield f"{path}{names.get(each.name, each.name)}", f"Missing required argument: {each.name!r} is required"


def _value(expected: Any, value: Any, where: str) -> Iterator[tuple[str, str]]:
    if value == UNKNOWN or value is None:
        return
    problems = [list(_one(option, value, where)) for option in _options(expected)]
    if problems and all(problems):
        yield from min(problems, key=len)


def _options(expected: Any) -> list[Any]:
    if typing.get_origin(expected) in (typing.Union, types.UnionType):
        return [
            option
            for each in typing.get_args(expected)
            for option in _options(each)
            if typing.get_origin(option) is not collections.abc.Awaitable and "Output" not in repr(option)
        ]
    return [] if expected is type(None) else [expected]


def _one(expected: Any, value: Any, where: str) -> Iterator[tuple[str, str]]:
    origin = typing.get_origin(expected)
    if expected is Any:
        return
    if isinstance(expected, type) and is_input_type(expected):
        if isinstance(value, dict):
            yield from _structure(expected, value, f"{where}.")
        else:
            yield where, f"expected an object, got {value!r}"
    elif origin in (collections.abc.Sequence, list):
        if not isinstance(value, list):
            yield where, f"expected a list, got {value!r}"
            return
        for index, each in enumerate(value):
            yield from _value(typing.get_args(expected)[0], each, f"{where}[{index}]")
    elif origin in (collections.abc.Mapping, dict):
        if not isinstance(value, dict):
            yield where, f"expected a map, got {value!r}"
            return
        for key, each in value.items():
            yield from _value(typing.get_args(expected)[1], each, f"{where}[{key!r}]")
    else:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        right = {
            str: isinstance(value, str),
            bool: isinstance(value, bool),
            int: number and float(value).is_integer(),
            float: number,
        }.get(expected)
        if right is False:
            yield where, f"expected {expected.__name__}, got {value!r}"
