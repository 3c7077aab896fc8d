"""What the dynamic resources of all providers share: one sentence instead of a traceback, and which keys changed.

Pulumi's state holds a dynamic provider's class by module and name, so that destroy runs today's code: such classes keep
their path, hold nothing, and call plain Python in their methods.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import pulumi

from infra import ssh_keys
from infra.errors import InfraError
from infra.providers.base import Deployment

_P = ParamSpec("_P")
_R = TypeVar("_R")
_KEY_AT_UP = "(made at up)"


def one_sentence(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The engine shows the user whatever traceback an exception has: leave an InfraError none, a bug its own."""

    @functools.wraps(function)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        sys.tracebacklimit = 1000
        try:
            return function(*args, **kwargs)
        except InfraError as error:
            sys.tracebacklimit = 0
            raise error.with_traceback(None) from None

    return wrapped


def changed(olds: Mapping[str, Any], news: Mapping[str, Any], *keys: str) -> list[str]:
    """Keys with a new value that is known: in a preview, what an updated network will answer isn't."""
    return [key for key in keys if _known(news.get(key)) and news.get(key) not in (olds.get(key), None)]


def _known(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(_known(each) for each in value.values())
    if isinstance(value, list):
        return all(_known(each) for each in value)
    return not isinstance(value, pulumi.output.Unknown)


def public_key(deployment: Deployment) -> str:
    """The stack's public key; the pair is made now if there is none. A preview makes nothing."""
    path = deployment.key_folder / "id_ed25519"
    if pulumi.runtime.is_dry_run() and not path.exists():
        return _KEY_AT_UP
    return ssh_keys.make_pair(path, comment=deployment.identity)
