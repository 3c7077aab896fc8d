"""Reading a recipe: one YAML file and `--set` overrides, checked completely before anything expensive starts."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from trainer.config import Recipe
from trainer.errors import ConfigError
from trainer.models.sections import MODEL_KINDS


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, and leaves numbers to the type of the key.

    YAML 1.1 makes text of 1e-3, 83 of 0123, 750 of 12:30 and a date of 2026-12-01: here they all are text at first.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - declared by PyYAML
        first: [(tag, form) for tag, form in resolvers if tag.rpartition(":")[2] in ("bool", "null", "merge")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = (key_node.tag, key_node.value) if isinstance(key_node, yaml.ScalarNode) else None
            if key is not None and key in seen:
                line = key_node.start_mark.line + 1
                raise ConfigError(f"key {key_node.value!r} is given twice, the second time in line {line}; remove one")
            seen.add(key)
        return super().construct_mapping(node, deep)


def load(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in `path` with `--set` overrides applied. Raises ConfigError that lists every problem."""
    values = _read(path)
    _spell_out(values)
    overridden = {_override(values, item) for item in overrides}
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        problems = [_sentence(path, item, overridden) for item in error.errors()]
        raise ConfigError("\n".join(dict.fromkeys(problems))) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read the recipe {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text; save it as UTF-8.") from None
    try:
        values = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a tag that its value doesn't suit, as in `!!int x`
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply; a recipe has no more than a few levels.") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}.") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold keys and values (experiment, model, data, …).")
    return values


def _spell_out(values: dict[str, Any]) -> None:
    """`strategy: fsdp` is short for `strategy: {name: fsdp}`."""
    if isinstance(values.get("strategy"), str):
        values["strategy"] = {"name": values["strategy"]}


def _override(values: dict[str, Any], item: str) -> str:
    """Applies one `a.b=c` in place; returns the dotted key."""
    key, equals, text = item.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"--set {item!r} must look like key=value, for example training.steps=100.")
    value: Any = text
    if text == "null":
        value = None
    elif parts[:2] == ["model", "options"]:
        value = _plain(text)  # a user model's own keys have no declared types
    elif text.startswith(("[", "{")):
        try:
            value = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
        except (yaml.YAMLError, ValueError, RecursionError):
            raise ConfigError(f"--set {key}: {text!r} is not a valid YAML list or mapping.") from None
        except ConfigError as error:
            raise ConfigError(f"--set {key}: {error}.") from None
    here = values
    for part in parts[:-1]:
        here = here.setdefault(part, {})
        if not isinstance(here, dict):
            raise ConfigError(f"--set {key}: {part!r} has no keys below it.")
    here[parts[-1]] = value
    _spell_out(values)
    return ".".join(parts)


def _plain(text: str) -> Any:
    """What YAML reads in the text."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ConfigError, ValueError, RecursionError):
        return text


def _sentence(path: Path, error: Mapping[str, Any], overridden: set[str]) -> str:
    location = [part for part in error["loc"] if part not in MODEL_KINDS]
    key = ".".join(str(part) for part in location)
    above = {".".join(map(str, location[:count])) for count in range(1, len(location) + 1)}  # --set betas=[…], betas.1
    where = f"--set {key}" if above & overridden else f"{path}: {key or 'recipe'}"
    kind = error["type"]
    if kind == "extra_forbidden":
        known = _keys_at(error["loc"][:-1])
        close = difflib.get_close_matches(str(location[-1]), known, n=1)
        close = close or _keys_named(str(location[-1]))
        hint = f"did you mean {close[0]!r}?" if close else f"known keys are {', '.join(known)}."
        return f"{where} is an unknown key; {hint}"
    if kind == "missing":
        return f"{where} is missing; add it."
    if kind == "value_error":
        problem = str(error["ctx"]["error"])
        return f"{where}: {problem}" if problem.endswith("?") else f"{where}: {problem}."
    if kind == "tuple_type":
        return f"{where} must be a list such as [a, b], not {error['input']!r}."
    if kind in ("model_type", "model_attributes_type"):
        return f"{where} must hold keys and values, not {error['input']!r}."
    if kind == "literal_error":
        if isinstance(error["input"], bool):
            word = f"{error['input']!r}, which YAML reads from words such as no and off; quote it if you mean the word."
            return f"{where} must be {error['ctx']['expected']}, not {word}"
        choices = re.findall(r"'([^']*)'", error["ctx"]["expected"])
        close = difflib.get_close_matches(str(error["input"]), choices)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        return f"{where} must be {error['ctx']['expected']}, not {error['input']!r}{hint}"
    return f"{where}: {error['msg']}, not {error['input']!r}."


def _keys_at(location: Sequence[str | int]) -> list[str]:
    section: type[BaseModel] = Recipe
    for part in location:
        if part in MODEL_KINDS:
            section = MODEL_KINDS[str(part)]
        else:
            kinds = _sections_in(section.model_fields[str(part)].annotation)
            section = kinds[0] if kinds else section
    return list(section.model_fields)


def _keys_named(name: str) -> list[str]:
    """Dotted keys of the sections that are called `name`: someone wrote `steps` and meant `training.steps`."""
    found = []
    for section, field in Recipe.model_fields.items():
        if any(name in kind.model_fields for kind in _sections_in(field.annotation)):
            found.append(f"{section}.{name}")
    return found


def _sections_in(annotation: Any) -> list[type[BaseModel]]:
    """`Section` itself, or those among the members of `Section | None` and the like."""
    members = get_args(annotation) or (annotation,)
    return [member for member in members if isinstance(member, type) and issubclass(member, BaseModel)]
