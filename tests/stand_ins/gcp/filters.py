"""Compute's list filters, as far as this double reads them; anything else is refused, never ignored.

labels.stack=x    name:prefix*    name=exact    status!=RUNNING    name eq 're.*'    (a=b) (c=d)    a=b AND c=d    OR
"""

from __future__ import annotations

import re
from typing import Any

from tests.stand_ins.gcp.errors import GcpError

_TERM = re.compile(
    r"""^\s*(?P<field>[A-Za-z][\w.-]*)\s*(?P<how>!=|=|:|\seq\s|\sne\s)\s*(?P<value>"[^"]*"|'[^']*'|\S+)\s*$"""
)


def matches(expression: str, body: dict[str, Any]) -> bool:
    """Whether a resource passes; 400 for an expression that isn't understood."""
    if not expression.strip():
        return True
    for joiner, combine in ((" OR ", any), (" AND ", all)):
        pieces = _split(expression, joiner)
        if len(pieces) > 1:
            return combine([matches(piece, body) for piece in pieces])
    groups = _groups(expression)
    if groups is not None:
        return all(matches(group, body) for group in groups)
    return _term(expression, body)


def _split(expression: str, joiner: str) -> list[str]:
    pieces, depth, start, at = [], 0, 0, 0
    while at < len(expression):
        depth += {"(": 1, ")": -1}.get(expression[at], 0)
        if depth == 0 and expression.startswith(joiner, at):
            pieces.append(expression[start:at])
            start = at = at + len(joiner)
            continue
        at += 1
    return [*pieces, expression[start:]]


def _groups(expression: str) -> list[str] | None:
    """The insides of "(a) (b)"; None for a plain term."""
    text = expression.strip()
    if not text.startswith("("):
        return None
    found, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        if letter == "(":
            depth += 1
            start = at + 1 if depth == 1 else start
        elif letter == ")":
            depth -= 1
            if depth == 0:
                found.append(text[start:at])
        elif depth == 0 and not letter.isspace():
            raise _bad(expression)
    if depth:
        raise _bad(expression)
    return found


def _term(expression: str, body: dict[str, Any]) -> bool:
    found = _TERM.match(expression)
    if found is None:
        raise _bad(expression)
    value, how = found["value"].strip("\"'"), found["how"].strip()
    present = _field(found["field"], body)
    text = "" if present is None else str(present).lower() if isinstance(present, bool) else str(present)
    if how in ("eq", "ne"):
        return (re.fullmatch(value, text) is not None) == (how == "eq")
    if how == ":":
        if value == "*":
            return present is not None
        return present is not None and re.fullmatch(re.escape(value).replace(r"\*", ".*"), text) is not None
    return (present is not None and text == value) == (how == "=")


def _field(name: str, body: dict[str, Any]) -> Any:
    first, _, rest = name.partition(".")
    value = body.get(first)
    if not rest:
        return value
    if first in ("labels", "metadata"):
        return (value or {}).get(rest)
    return _field(rest, value) if isinstance(value, dict) else None


def _bad(expression: str) -> GcpError:
    return GcpError(
        400, "invalid", f"Invalid value for field 'filter': '{expression}'. Invalid list filter expression."
    )
