"""What a recipe's values may be: numbers, whole numbers and text as YAML gives them, read strictly; no torch."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _number(value: Any) -> float:
    """A finite number from a YAML number or from text such as "1e-3", which YAML 1.1 reads as a string."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"must be a number, not {value!r}")
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
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number = _number(value)
    if number != int(number):
        raise ValueError(f"must be a whole number, not {value!r}")
    return int(number)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text, not {value!r}; quote it if it is meant as text")
    return value


Number = Annotated[float, BeforeValidator(_number)]
Whole = Annotated[int, BeforeValidator(_whole)]
Text = Annotated[str, BeforeValidator(_text)]
Name = Annotated[str, BeforeValidator(_text), Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
Positive = Annotated[int, BeforeValidator(_whole), Field(ge=1)]
Count = Annotated[int, BeforeValidator(_whole), Field(ge=0)]
Share = Annotated[float, BeforeValidator(_number), Field(ge=0, le=1)]
Beta = Annotated[float, BeforeValidator(_number), Field(ge=0, lt=1)]
InnerShare = Annotated[float, BeforeValidator(_number), Field(gt=0, lt=1)]
FromZero = Annotated[float, BeforeValidator(_number), Field(ge=0)]
AboveZero = Annotated[float, BeforeValidator(_number), Field(gt=0)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
