"""The edge between our exceptions and a shell: one sentence on stderr and the right exit code, in one place.

@task
@command
def leftovers(context, stack=None): ...
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from invoke.exceptions import Exit

from infra.errors import InfraError

_P = ParamSpec("_P")
_R = TypeVar("_R")


def command(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`function` as a command: an InfraError (or BootstrapError, LauncherError) becomes `Exit` with its text and code.

    Ctrl-C is exit code 130 without a traceback. Anything else is our own bug and keeps its traceback.
    """

    @functools.wraps(function)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except InfraError as error:
            raise Exit(f"error: {error}", code=error.exit_code) from None
        except KeyboardInterrupt:
            raise Exit("interrupted", code=130) from None

    return wrapped
