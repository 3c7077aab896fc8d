"""JSON as its standard has it, in and out: every file of JSON that the trainer reads or writes passes here.

Python's own writes NaN and Infinity, which other readers refuse, and meets deep nesting with a RecursionError.
"""

from __future__ import annotations

import json
import math
from typing import Any

_LEVELS = 100  # far above what any file of ours has, far below what Python can follow


def encode(value: Any, *, indent: int | None = None) -> str:
    """The value as JSON; a number that isn't finite becomes null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


class RepeatedKey(ValueError):
    """`key` stands twice in one object."""

    def __init__(self, key: str) -> None:
        super().__init__(f"key {key!r} is given twice")
        self.key = key


def unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these keys and values; json alone would keep the last of two values and lose the other unsaid."""
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        raise RepeatedKey(next(key for key in keys if keys.count(key) > 1))
    return value


def decode(data: bytes | str, *, repeated: bool = True) -> Any:
    """The value in `data`. repeated: whether a key may stand twice in one object; False raises RepeatedKey for one.

    Raises ValueError for what is no JSON, NaN and Infinity included, for bytes that are no UTF-8, and for lists and
    objects nested more than a hundred deep.
    """
    try:
        value = json.loads(data, object_pairs_hook=None if repeated else unrepeated, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [value]
    for _ in range(_LEVELS):
        level = [child for item in level for child in _children(item)]
        if not level:
            return value
    raise ValueError("it is nested too deeply")


def number(value: float | None) -> float:
    """What `encode` made null."""
    return math.nan if value is None else value


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is not a number")
