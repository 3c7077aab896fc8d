"""`python -m trainer keys`: every key of a recipe with its default, its meaning and what it may hold."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.config import Recipe
from trainer.errors import ConfigError

Schema = Mapping[str, Any]
_WORDS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}
_LIMITS = {"minimum": "from {}", "exclusiveMinimum": "above {}", "maximum": "to {}", "exclusiveMaximum": "below {}"}
# Their checks take more than the schema can say.
_OWN_WORDS = {"strategy.stage": "1, 2 or 3", "watch.max_duration": "a time such as 55m"}


@dataclass(frozen=True)
class Key:
    """name: as `--set` takes it. default: None when the key must be given. holds: the values it takes."""

    name: str
    default: str | None
    meaning: str
    holds: str


def keys() -> list[Key]:
    """In the order of the recipe's sections."""
    schema = Recipe.model_json_schema()
    return list(_keys(schema, schema["$defs"], prefix=""))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainer keys",
        description="Lists the keys of a recipe: default, meaning, and what a key may hold.",
        epilog="example: python -m trainer keys checkpoint",
        allow_abbrev=False,
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="only keys with one of these in their name")
    words = parser.parse_args(arguments).words
    found = [key for key in keys() if not words or any(word in key.name for word in words)]
    if not found:
        raise ConfigError(f"no key has {' or '.join(words)} in its name; python -m trainer keys lists all.")
    width, wide = max(len(key.name) for key in found), max(len(_shown(key)) for key in found)
    for key in found:
        print(f"{key.name:{width}}  {_shown(key):{wide}}  {key.meaning} ({key.holds})")
    return 0


def _shown(key: Key) -> str:
    return "needed" if key.default is None else key.default


def _keys(section: Schema, sections: Mapping[str, Schema], *, prefix: str) -> Iterator[Key]:
    for name, field in section["properties"].items():
        inner = _inner(field, sections)
        if inner:
            for one in inner:
                yield from _keys(one, sections, prefix=f"{prefix}{name}.")
            continue
        default = json.dumps(field["default"]) if "default" in field else None
        if name not in section.get("required", ()) and default is None:
            default = "{}"  # made by a factory
        full = prefix + name
        meaning = " ".join(field.get("description", "").split())
        yield Key(full, default, meaning, _OWN_WORDS.get(full) or _holds(field))


def _inner(field: Schema, sections: Mapping[str, Schema]) -> list[Schema]:
    """The sections that stand under this key: several where one key chooses between kinds."""
    choices = [field, *field.get("anyOf", ()), *field.get("oneOf", ())]
    return [sections[choice["$ref"].rpartition("/")[2]] for choice in choices if "$ref" in choice]


def _holds(schema: Schema) -> str:
    if "anyOf" in schema:
        return " or ".join(_holds(choice) for choice in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(str(value) for value in schema["enum"])
    kind = schema.get("type")
    if kind == "null":
        return "null"
    if kind == "array":
        items = schema.get("prefixItems") or [schema["items"]]
        return f"{'list of' if 'items' in schema else 'two of'} {_holds(items[0])}"
    if kind == "object":
        return "keys and values"
    limits = [text.format(f"{schema[key]:g}") for key, text in _LIMITS.items() if key in schema]
    return " ".join([_WORDS[str(kind)], " and ".join(limits)]).strip()
