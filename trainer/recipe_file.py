"""Reads a recipe: YAML and `--set key=value` to a Recipe, with every mistake reported at once, by file, line and key.

YAML 1.1 guesses types: `1e-3` is a string, `no` is a bool, `12:30` is 750, `0123` is 83. Here nothing is guessed: the text of
each scalar is kept, and the type that config.py declares decides how it is read, or why it's refused.
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from trainer.config import Recipe, Section
from trainer.errors import ConfigError

_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_LEADING_ZERO = re.compile(r"[-+]?0\d")
_NULL = {"", "~", "null", "Null", "NULL"}
_STRING_TAG = "tag:yaml.org,2002:str"


@dataclass(frozen=True)
class Scalar:
    """One value as written. `ambiguous`: YAML 1.1 readers would take this plain text for something else than text."""

    text: str
    where: str
    quoted: bool = False
    ambiguous: bool = False


@dataclass(frozen=True)
class Mapping:
    where: str
    items: dict[str, Value]
    key_where: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Listing:
    where: str
    items: tuple[Value, ...]


Value = Scalar | Mapping | Listing


class _Refused(Exception):
    """One value can't be what its key declares; the text is the reason."""


def load(path: Path, *, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in `path` with `overrides` ("training.steps=300"). Raises ConfigError that lists all mistakes."""
    problems: list[str] = []
    tree = _read(path, problems)
    for override in overrides:
        _apply(tree, override, problems)
    name = path.stem
    tree.items.setdefault("experiment", Scalar(name, str(path), quoted=True))
    experiment = tree.items["experiment"]
    named = experiment.text if isinstance(experiment, Scalar) else name
    tree.items.setdefault("output_dir", Scalar(f"runs/{named}", str(path), quoted=True))
    failed: set[tuple[str, ...]] = set()
    values = _section(tree, Recipe, (), problems=problems, failed=failed)
    recipe: Recipe | None = None
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        for item in error.errors():
            location = tuple(str(part) for part in item["loc"])
            if any(location[: len(bad)] == bad or bad[: len(location)] == location for bad in failed):
                continue  # said already, or a consequence of it
            problems.append(f"{_place(tree, location, path)}: {'.'.join(location) or 'recipe'}: {_reason(item)}")
    if problems or recipe is None:
        raise ConfigError("; ".join(problems) if len(problems) == 1 else "\n  ".join([f"{path}:", *problems]))
    return recipe


def _read(path: Path, problems: list[str]) -> Mapping:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such recipe; give the path of a YAML file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} isn't UTF-8; save the recipe as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path}: can't be read ({error.strerror})") from None
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise ConfigError(f"{path}:{event.start_mark.line + 1}: aliases aren't read; write the value out")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError(f"{place}: not YAML: {getattr(error, 'problem', None) or error}") from None
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{path}: a recipe is a mapping of keys to values")
    tree = _from_node(node, str(path), problems)
    assert isinstance(tree, Mapping)
    return tree


def _from_node(node: yaml.Node, path: str, problems: list[str]) -> Value:
    where = f"{path}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.ScalarNode):
        plain = node.style is None
        return Scalar(node.value, where, quoted=not plain, ambiguous=plain and node.tag != _STRING_TAG)
    if isinstance(node, yaml.SequenceNode):
        return Listing(where, tuple(_from_node(item, path, problems) for item in node.value))
    tree = Mapping(where, {})
    for key_node, value_node in node.value:
        line = f"{path}:{key_node.start_mark.line + 1}"
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) else "(not a name)"
        if key in tree.items:
            problems.append(f"{line}: {key}: written twice (first at {tree.key_where[key]}); keep one")
        tree.items[key] = _from_node(value_node, path, problems)
        tree.key_where[key] = line
    return tree


def _apply(tree: Mapping, override: str, problems: list[str]) -> None:
    """Puts one `a.b=value` into the tree. The value is read as its key's type, as in a file, but text needs no quotes."""
    where = f"--set {override}"
    key, equals, text = override.partition("=")
    if not equals or not key:
        problems.append(f"{where}: write --set key=value, for example --set training.steps=300")
        return
    value: Value = Scalar(text, where)
    if text[:1] in ("[", "{", '"', "'"):
        try:
            value = _from_node(yaml.compose(text, Loader=yaml.SafeLoader), where, problems)
        except yaml.YAMLError:
            problems.append(f"{where}: {text!r} isn't a YAML value")
            return
    *parents, last = key.split(".")
    section = tree
    for parent in parents:
        below = section.items.get(parent)
        if isinstance(below, Scalar) and below.text not in _NULL:  # `strategy: ddp`, then strategy.replicate=2
            below = Mapping(below.where, {"name": below})
        if not isinstance(below, Mapping):
            below = Mapping(where, {})
        section.items[parent] = below
        section = below
    section.items[last] = value
    section.key_where[last] = where


def _section(
    tree: Mapping, model: type[Section], path: tuple[str, ...], *, problems: list[str], failed: set[tuple[str, ...]]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in tree.items.items():
        here = (*path, key)
        if key not in model.model_fields:
            near = difflib.get_close_matches(key, model.model_fields, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(model.model_fields)}"
            problems.append(f"{tree.key_where.get(key, value.where)}: {'.'.join(here)}: unknown key; {hint}")
            failed.add((*path, near[0]) if near else here)
            continue
        annotation = model.model_fields[key].annotation
        try:
            values[key] = _convert(value, annotation, here, problems=problems, failed=failed)
        except _Refused as reason:
            problems.append(f"{value.where}: {'.'.join(here)}: {reason}")
            failed.add(here)
    return values


def _convert(
    value: Value, annotation: Any, path: tuple[str, ...], *, problems: list[str], failed: set[tuple[str, ...]]
) -> Any:
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):  # only `X | None` is used
        if isinstance(value, Scalar) and not value.quoted and value.text in _NULL:
            return None
        annotation = next(part for part in typing.get_args(annotation) if part is not type(None))
        return _convert(value, annotation, path, problems=problems, failed=failed)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        assert issubclass(annotation, Section)
        if isinstance(value, Scalar) and annotation.shorthand and (value.quoted or value.text not in _NULL):
            value = Mapping(value.where, {annotation.shorthand: value})
        if not isinstance(value, Mapping):
            raise _Refused(f"is a section with keys ({', '.join(annotation.model_fields)})")
        return _section(value, annotation, path, problems=problems, failed=failed)
    if typing.get_origin(annotation) is tuple:
        parts = typing.get_args(annotation)
        if not isinstance(value, Listing) or len(value.items) != len(parts):
            raise _Refused(f"is a list of {len(parts)} values")
        pairs = zip(value.items, parts, strict=True)
        return tuple(_convert(item, part, path, problems=problems, failed=failed) for item, part in pairs)
    if not isinstance(value, Scalar):
        raise _Refused("is one value, not a list or a section")
    return _scalar(value, str if typing.get_origin(annotation) is typing.Literal else annotation)


def _scalar(value: Scalar, kind: type) -> Any:
    if kind is str:
        return _text(value)
    if value.quoted:
        raise _Refused(f'"{value.text}" is quoted, so it is text; a number is needed: remove the quotes')
    if value.text in _NULL:
        raise _Refused("has no value")
    if not _NUMBER.fullmatch(value.text):
        raise _Refused(f"{value.text!r} isn't a {'whole ' if kind is int else 'finite '}number")
    if _LEADING_ZERO.match(value.text):
        raise _Refused(f"{value.text!r} has a leading zero; write it without")
    exact = Decimal(value.text)
    if kind is float:
        return float(exact)
    if exact.adjusted() > 18 or exact != exact.to_integral_value():
        raise _Refused(f"{value.text!r} isn't a whole number" + (" of at most 18 digits" if exact.adjusted() > 18 else ""))
    return int(exact)


def _text(value: Scalar) -> str:
    if value.ambiguous:
        raise _Refused(f'{value.text!r} is read by YAML as something else than text: quote it, "{value.text}"')
    if value.text != value.text.strip() or not value.text or not value.text.isprintable():
        raise _Refused(f"{value.text!r} is empty or has blanks or control characters at an end or inside")
    return value.text


def _reason(item: Any) -> str:
    """pydantic's reason for one refused value, in our words where its own would puzzle."""
    if item["type"] == "missing":
        return "is required"
    if item["type"] == "value_error":
        return str(item["ctx"]["error"])
    return f"{item['msg'][0].lower()}{item['msg'][1:]}, not {item['input']!r}"


def _place(tree: Mapping, location: tuple[str, ...], path: Path) -> str:
    """The line of the deepest key of `location` that is written."""
    place, value = str(path), typing.cast(Value, tree)
    for key in location:
        if not isinstance(value, Mapping) or key not in value.items:
            break
        place, value = value.key_where.get(key, value.where), value.items[key]
    return place
