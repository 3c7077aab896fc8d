"""REST APIs of the smaller clouds: one place for deadlines, retries, rate limits, and answers that aren't as described.

Whether a call may be repeated is the caller's to say: a create whose answer never came may have made something, and is
looked for instead (NoAnswerError).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError

from infra.errors import AccessError, ProviderError

_T = TypeVar("_T")
_TIMEOUT = httpx.Timeout(60.0, connect=10.0)
_TRIES = 6
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 30.0
_NO_CONTENT, _BUSY, _BROKEN = 204, 429, 500


class NoAnswerError(ProviderError):
    """The call may have been carried out: there was no answer, or none that can be read."""


class Pace:
    """At most one call each `every_s` seconds, over all threads of this process."""

    def __init__(
        self,
        every_s: float,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._every_s, self._sleep, self._clock = every_s, sleep, clock
        self._next = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Returns when it is this call's turn."""
        with self._lock:
            now = self._clock()
            turn = max(now, self._next)
            self._next = turn + self._every_s
        if turn > now:
            self._sleep(turn - now)


class Rest:
    """One API. `name` for messages; `translate`: status, JSON body ({} where it is none) and what was done to an error.

    `key` travels in a header only; a URL that isn't HTTPS is taken on this machine alone: tests have a server there.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        name: str,
        translate: Callable[[int, Mapping[str, Any], str], ProviderError],
        pace: Pace,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        base = httpx.URL(url)
        if base.scheme != "https" and base.host not in ("127.0.0.1", "localhost", "::1"):
            raise AccessError(f"{name}'s address is {url}, and a key is sent over https only: correct it")
        self._name, self._translate, self._pace, self._sleep = name, translate, pace, sleep
        self._http = httpx.Client(
            base_url=base,
            headers={"Authorization": f"Bearer {key}", "Accept": "application/json"},
            timeout=_TIMEOUT,
            follow_redirects=False,  # a key goes to the address that was named, and no other
        )

    def call(
        self,
        method: str,
        path: str,
        answer: TypeAdapter[_T],
        *,
        doing: str,
        body: Mapping[str, Any] | None = None,
        repeatable: bool = True,
        pace: Pace | None = None,
    ) -> _T:
        """The answer, checked. `doing` begins each message: "launching node-0 in us-east-1".

        `repeatable`: whether the call may be made again when nobody knows if it was carried out. `pace`: beside the
        API's own. Raises what `translate` makes of a refusal, NoAnswerError, ProviderError.
        """
        waits = _waits()
        while True:
            for each in (self._pace, pace):
                if each is not None:
                    each.wait()
            wait_s = next(waits)
            try:
                response = self._http.request(method, path, json=body)
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
                if wait_s is None:  # nothing was sent
                    raise ProviderError(
                        f"{doing}: {self._name} can't be reached ({_text(error)}): look at the network"
                    ) from None
                self._sleep(wait_s)
                continue
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                if not repeatable or wait_s is None:
                    raise NoAnswerError(
                        f"{doing}: {self._name} didn't answer ({_text(error)}): run the command again"
                    ) from None
                self._sleep(wait_s)
                continue
            if response.is_success:
                return self._read(response, answer, doing=doing, repeatable=repeatable)
            again = response.status_code == _BUSY or (repeatable and response.status_code >= _BROKEN)
            if not again or wait_s is None:
                raise self._refusal(response, doing=doing, repeatable=repeatable)
            self._sleep(max(wait_s, _told_to_wait_s(response)))

    def _refusal(self, response: httpx.Response, *, doing: str, repeatable: bool) -> ProviderError:
        try:
            body = response.json()
        except ValueError:
            body = {}
        error = self._translate(response.status_code, body if isinstance(body, dict) else {}, doing)
        if response.status_code >= _BROKEN and not repeatable and type(error) is ProviderError:
            return NoAnswerError(str(error))
        return error

    def _read(self, response: httpx.Response, answer: TypeAdapter[_T], *, doing: str, repeatable: bool) -> _T:
        try:
            if response.status_code == _NO_CONTENT:
                return answer.validate_python(None)
            return answer.validate_json(response.content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the whole"
            kind = ProviderError if repeatable else NoAnswerError
            raise kind(
                f"{doing}: {self._name}'s answer isn't as its API describes it ({where}: {first['msg']}), so it tells "
                "nothing: run the command again; if that stays, its API has changed"
            ) from None


def _waits() -> Any:
    """Seconds before each next try, doubled with jitter; None when there have been enough."""
    for tries in range(_TRIES - 1):
        yield min(_FIRST_WAIT_S * 2**tries, _LONGEST_WAIT_S) * random.uniform(0.75, 1.25)  # noqa: S311
    while True:
        yield None


def _told_to_wait_s(response: httpx.Response) -> float:
    try:
        return min(float(response.headers.get("Retry-After", 0)), 2 * _LONGEST_WAIT_S)
    except ValueError:  # a date
        return 0.0


def _text(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
