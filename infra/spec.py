"""What the user asks for: ClusterSpec, read once from the stack file, checked completely, units in the names.

    config:
      trainstack:cluster:
        provider: local
        nodes: 2

Every wrong key is reported in one go, a sentence each; nothing behind this file checks a type again.
"""

from __future__ import annotations

import contextlib
import difflib
import ipaddress
import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from infra.errors import SpecError
from infra.providers import MODULES

CONFIG_KEY = "cluster"
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_DECIMAL = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
MIN_LIFETIME_S, MAX_LIFETIME_S = 60, 30 * 86400
_LONGEST_NAME = 256


def _refuse(message: str) -> PydanticCustomError:
    return PydanticCustomError("trainstack", "{reason}", {"reason": message})


def _text(value: object) -> str:
    if isinstance(value, bool):
        raise _refuse(f"is {str(value).lower()}, which YAML takes for a truth value: quote it if you mean the word")
    if not isinstance(value, str):
        raise _refuse(f"is {value!r}, not a text: quote it")
    return value


def _whole(value: object) -> int:
    """A whole number. `pulumi config set --path` writes numbers as they are, so text is refused."""
    if isinstance(value, bool) or not isinstance(value, int):
        is_quoted = isinstance(value, str) and value.strip().isdigit()
        hint = ": write it without quotes" if is_quoted else ": write digits alone"
        raise _refuse(f"is {value!r}, not a whole number{hint}")
    return value


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise _refuse(f"is {value!r}: write true or false")
    return value


def _dollars(value: object) -> float:
    """Finite and not negative. Text such as "0.5" is taken: `pulumi config set --path` quotes decimals."""
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refuse(f"is {value!r}, not a number of US dollars per hour: write it as 12.5")
    if not math.isfinite(value) or value < 0:
        raise _refuse(f"is {value!r}: take a finite number of US dollars per hour, 0 or more")
    return float(value)


def _seconds(value: object) -> int:
    """ "24h" to 86400."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise _refuse(f'is {value!r}: write a duration with its unit, such as "24h", "90m" or "7d"')
    seconds = float(match[1]) * _UNIT_S[match[2]]
    if not MIN_LIFETIME_S <= seconds <= MAX_LIFETIME_S:
        raise _refuse(f"is {value!r}: take between 1m and 30d")
    return int(seconds)


def _provider(value: object) -> str:
    name = _text(value)
    if name not in MODULES:
        raise _refuse(f"is {name!r}: take one of {', '.join(sorted(MODULES))}{_nearest(name, MODULES)}")
    return name


def _nearest(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word.strip().lower(), list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]}?)" if close else ""


def _choice(*words: str) -> BeforeValidator:
    def check(value: object) -> str:
        word = _text(value)
        if word not in words:
            raise _refuse(f"is {word!r}: take one of {', '.join(words)}{_nearest(word, words)}")
        return word

    return BeforeValidator(check)


def _word(value: object) -> str:
    """A name of the provider's (region, zone, machine, image): one printable word, whatever else it may be."""
    word = _text(value)
    if not word or not word.isascii() or not word.isprintable() or word != word.strip() or len(word) > _LONGEST_NAME:
        raise _refuse(f"is {word!r}: take a name of the provider's, as its console shows it")
    return word


def _words(value: object) -> tuple[str, ...]:
    words = value if isinstance(value, list | tuple) else [value]
    if not words:
        raise _refuse("is empty: name at least one, or remove the key")
    if len(set(map(str, words))) != len(words):
        raise _refuse(f"is {words!r}: name each once")
    return tuple(_word(word) for word in words)


def _networks(value: object) -> tuple[str, ...]:
    """CIDR blocks or single addresses. The world must be written out, and for that there is no short form."""
    found = []
    for word in _words(value):
        try:
            found.append(str(ipaddress.ip_network(word)))
        except ValueError as error:
            raise _refuse(f"has {word!r}, which is no network ({error}): write 203.0.113.7 or 203.0.113.0/24") from None
    if len(set(found)) != len(found):
        raise _refuse(f"is {value!r}, which has a network twice (203.0.113.7 is 203.0.113.7/32): name each once")
    return tuple(found)


class Storage(BaseModel):
    """Storage that all nodes share, beside their own disks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Annotated[Literal["lustre", "nfs", "bucket"], _choice("lustre", "nfs", "bucket")]
    """lustre and nfs are one folder on every node; a bucket is object storage that the nodes may read and write."""
    size_gib: Annotated[int, BeforeValidator(_whole), Field(ge=1)] | None = None
    """For lustre (and GCP's nfs), which bill what is set up; a bucket and AWS's nfs bill what is used."""


class ClusterSpec(BaseModel):
    """A cluster as asked for. A provider's own limits (how many nodes, which GPUs) are its preflight's matter."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    provider: Annotated[str, BeforeValidator(_provider)]
    nodes: Annotated[int, BeforeValidator(_whole), Field(ge=1)] = 2
    processes_per_node: Annotated[int, BeforeValidator(_whole), Field(ge=1, le=64)] | None = None
    """Training processes on each node (local world size). None: one a GPU, or one where there is none."""
    shared_storage: Annotated[bool, BeforeValidator(_truth)] = False
    """Whether one folder is the same storage on every node (local)."""
    max_lifetime_s: Annotated[int, BeforeValidator(_seconds), Field(alias="max_lifetime")] = 24 * 3600
    """The guard ends the nodes this long after they were asked for."""
    max_hourly_usd: Annotated[float, BeforeValidator(_dollars)] | None = None
    """`pulumi preview` refuses a cluster above it. None: no cap."""
    region: Annotated[str, BeforeValidator(_word)] | None = None
    zones: Annotated[tuple[str, ...], BeforeValidator(_words)] | None = None
    """Tried in this order; the whole gang goes to one. None: all of the region that have the machine."""
    gpus: Annotated[str, BeforeValidator(_word)] | None = None
    """What each machine has: "H100:8". The smallest machine with exactly that is taken."""
    instance: Annotated[str, BeforeValidator(_word)] | None = None
    """The provider's own machine type, "p5.48xlarge", in place of `gpus`."""
    market: Annotated[Literal["on-demand", "spot", "flex-start"], _choice("on-demand", "spot", "flex-start")] = (
        "on-demand"
    )
    reservation: Annotated[str, BeforeValidator(_word)] | None = None
    """Id or name of a reservation (AWS: or capacity block) of yours to start in."""
    image: Annotated[str, BeforeValidator(_word)] | None = None
    """None: the provider's image with GPU drivers."""
    disk_gib: Annotated[int, BeforeValidator(_whole), Field(ge=1)] | None = None
    """Root disk of each machine. None: room for the image, the environment and some checkpoints."""
    ssh_from: Annotated[tuple[str, ...], BeforeValidator(_networks)] | None = None
    """Networks that may reach SSH. None: the address that this machine is seen with, nothing else."""
    egress: Annotated[Literal["nat", "endpoints"], _choice("nat", "endpoints")] = "nat"
    """How nodes without a public address reach out: NAT (all of the internet), or the provider's own storage only."""
    storage: Storage | None = None


KEYS = tuple(field.alias or name for name, field in ClusterSpec.model_fields.items())


def foreign_keys(spec: ClusterSpec, known: Iterable[str], *, file: str) -> list[str]:
    """A sentence for each key that the stack file sets and the provider has no use for. `known`: the keys it reads."""
    written = [
        ClusterSpec.model_fields[name].alias or name
        for name in ClusterSpec.model_fields
        if name in spec.model_fields_set
    ]
    return [
        f"{file}, key trainstack:{CONFIG_KEY}.{key} means nothing to provider {spec.provider}: remove it "
        f"(it reads {', '.join(known)})"
        for key in written
        if key not in known
    ]


def parse(value: object, *, file: str) -> ClusterSpec:
    """The spec in `value` (plain JSON values); raises SpecError with one sentence a wrong key, `file` in each."""
    where = f"{file}, key trainstack:{CONFIG_KEY}"
    if value is None:
        raise SpecError(f"{where} is missing: write at least `provider: local` and `nodes: 2` under it")
    if not isinstance(value, dict):
        raise SpecError(f"{where} is {value!r}, not a mapping: write `provider: …`, `nodes: …` indented under it")
    try:
        return ClusterSpec.model_validate(value)
    except ValidationError as error:
        raise SpecError("\n".join(f"{where}.{_sentence(each)}" for each in error.errors())) from None


def parse_config(config: dict[str, Any], *, file: str, project: str) -> ClusterSpec:
    """The spec in a stack's whole configuration, as Pulumi hands it over ("project:key" to text or JSON)."""
    ours = {key.partition(":")[2]: value for key, value in config.items() if key.partition(":")[0] == project}
    wrong = [
        f"{file}, key {project}:{key} is unknown: only {project}:{CONFIG_KEY} is read{_nearest(key, [CONFIG_KEY])}"
        for key in sorted(ours)
        if key != CONFIG_KEY
    ]
    value = ours.get(CONFIG_KEY)
    if isinstance(value, str):
        with contextlib.suppress(ValueError):  # a bare text: `parse` says that it isn't a mapping
            value = json.loads(value)
    try:
        spec = parse(value, file=file)
    except SpecError as error:
        raise SpecError("\n".join([*wrong, str(error)])) from None
    if wrong:
        raise SpecError("\n".join(wrong))
    return spec


def read_config(stack_file: Path) -> dict[str, Any]:
    """The file's `config` for those who must go on without it: {} where it can't be read or isn't a mapping."""
    try:
        content = yaml.safe_load(stack_file.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    config = content.get("config") if isinstance(content, dict) else None
    return config if isinstance(config, dict) else {}


def _sentence(error: ErrorDetails) -> str:
    """One pydantic error: "nodes is 0: take 1 or more"."""
    key = ".".join(str(part) for part in error["loc"])
    given, context = error["input"], error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden":
            known = KEYS if len(error["loc"]) == 1 else tuple(Storage.model_fields)
            return f"{key} is unknown{_nearest(str(error['loc'][-1]), known) or ': take one of ' + ', '.join(known)}"
        case "missing":
            return f"{key} is missing: add it"
        case "greater_than_equal":
            return f"{key} is {given!r}: take {context['ge']} or more"
        case "less_than_equal":
            return f"{key} is {given!r}: take {context['le']} or fewer"
        case "model_type" | "model_attributes_type":
            return f"{key} is {given!r}, not a mapping: write `kind: nfs` (or lustre, or bucket) indented under it"
        case "trainstack":
            return f"{key} {error['msg']}"
        case _:
            return f"{key} is {given!r}: {error['msg']}"
