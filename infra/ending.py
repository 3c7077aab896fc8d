"""How machines are ended, whatever the cloud: all are told, one that refuses keeps no other, and the end is seen."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from infra.errors import ProviderError

LOOK_EVERY_S = 5.0
_SAY_EVERY_S = 60.0


def end_each(
    ids: Iterable[str],
    *,
    tell: Callable[[str], None],
    living: Callable[[Sequence[str]], Mapping[str, str]],
    deadline_s: float,
    cloud: str,
    console: str,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Returns when all have ended, as the cloud itself says.

    `tell` asks for the end of one; that it isn't there is no error. `living`: those of the ids that haven't ended, each
    with its name and state for messages. `console`: where a person sees them. Raises ProviderError, of the first
    refusal's kind.
    """
    told: list[str] = []
    problems: list[ProviderError] = []
    for id_ in ids:
        try:
            tell(id_)
            told.append(id_)
        except ProviderError as error:
            problems.append(error)
    begun = clock()
    said = begun
    while told and (left := living(told)):
        waited_s = clock() - begun
        if waited_s >= deadline_s:
            names = ", ".join(left.values())
            problems.append(
                ProviderError(
                    f"{names} {deadline_s:.0f} s after {cloud} was told to end it: look at it at {console}, then run "
                    "`fab leftovers`"
                )
            )
            break
        if clock() - said >= _SAY_EVERY_S:
            said = clock()
            print(
                f"waiting for {cloud}, {waited_s:.0f} s so far: {', '.join(left.values())}", file=sys.stderr, flush=True
            )
        sleep(LOOK_EVERY_S)
    if problems:
        raise type(problems[0])("; ".join(map(str, problems)))
