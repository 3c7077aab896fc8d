"""What a recipe's values may be: numbers, whole numbers and text as YAML gives them, read strictly; no torch."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_OCTAL = re.compile(r"[+-]?0[0-9_]")


def _number(value: Any) -> float:
    """A finite number from a number or from text such as "1e-3" (see the loader in recipe_file.py)."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"must be a number, not {value!r}")
    if isinstance(value, str) and _OCTAL.match(value.strip()):
        raise ValueError(f"is {value!r}: a number that begins with 0 is octal to some readers; leave the 0 out")
    try:
        number = float(value)
    except ValueError:
        raise ValueError(f"must be a number, not {value!r}") from None
    except OverflowError:
        raise ValueError("is too large a number") from None
    if not math.isfinite(number):
        raise ValueError(f"must be a finite number, not {value!r}")
    return number


def _whole(value: Any) -> int:
    number = _number(value)
    if number != int(number):
        raise ValueError(f"must be a whole number, not {value!r}")
    try:
        return int(value)  # not through a float: a seed of 17 digits keeps all of them
    except ValueError:
        return int(number)  # "1e3"


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text, not {value!r}; quote it if it is meant as text")
    return value


Number = Annotated[float, BeforeValidator(_number)]
Whole = Annotated[int, BeforeValidator(_whole)]
Text = Annotated[str, BeforeValidator(_text)]
Name = Annotated[str, BeforeValidator(_text), Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
Positive = Annotated[int, Field(ge=1), BeforeValidator(_whole)]
Count = Annotated[int, Field(ge=0), BeforeValidator(_whole)]
Seed = Annotated[int, Field(ge=0, lt=2**64), BeforeValidator(_whole)]  # as torch takes it
Share = Annotated[float, Field(ge=0, le=1), BeforeValidator(_number)]
Beta = Annotated[float, Field(ge=0, lt=1), BeforeValidator(_number)]
InnerShare = Annotated[float, Field(gt=0, lt=1), BeforeValidator(_number)]
FromZero = Annotated[float, Field(ge=0), BeforeValidator(_number)]
AboveZero = Annotated[float, Field(gt=0), BeforeValidator(_number)]
_LONGEST_S = 1e9  # thirty years: timers of the system and of torch overflow not far above it
Seconds = Annotated[float, Field(gt=0, le=_LONGEST_S), BeforeValidator(_number)]


def _duration(value: Any) -> float:
    """Seconds from 55m, 1h30m, 90s, 2d or a plain number of seconds."""
    parts = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", value) if isinstance(value, str) else None
    if parts and any(parts.groups()):
        return sum(int(part or 0) * unit for part, unit in zip(parts.groups(), (86400, 3600, 60, 1), strict=True))
    try:
        return _number(value)
    except ValueError:
        raise ValueError(f"must be a time such as 55m, 1h30m or 90s, not {value!r}") from None


Duration = Annotated[float, Field(gt=0, le=_LONGEST_S), BeforeValidator(_duration)]  # in seconds


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), use_attribute_docstrings=True)
