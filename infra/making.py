"""How a machine is made where a create knows no idempotency token: by the mark that it bears, once, and as promised."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from infra.ending import LOOK_EVERY_S
from infra.errors import ProviderError
from infra.rest import NoAnswerError

_LOOKS = 6


def made_once(
    create: Callable[[], str], *, with_token: Callable[[], str | None], sleep: Callable[[float], None]
) -> str:
    """Id of what `create` made; where its answer never came, what bears the token is looked for, and not made again."""
    try:
        return create()
    except NoAnswerError as error:
        for _ in range(_LOOKS):
            sleep(LOOK_EVERY_S)
            with contextlib.suppress(ProviderError):  # what the create said tells more
                if (made := with_token()) is not None:
                    return made
        raise error


def end_or_tell(end: Callable[[Sequence[str]], None], id_: str, why: str) -> None:
    """End what isn't kept. Raises ProviderError with both reasons where that fails."""
    try:
        end([id_])
    except ProviderError as error:
        raise ProviderError(f"{why}; and it could not be ended ({error}): run `fab leftovers --remove`") from None
