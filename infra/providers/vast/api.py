"""Vast.ai's API as published (docs of 2026-08): the calls that we make, and what their answers must look like.

Limits by its descriptions, each an interval per endpoint: list 1 s, create 4.5 s, destroy 3 s, search 6 s. A 429 has
no Retry-After, and its body may be plain text. Creates have no idempotency token.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, TypeAdapter

from infra.errors import AccessError, CapacityError, ProviderError, QuotaError
from infra.rest import NoAnswerError, Pace, Rest

URL_VARIABLE, URL = "VAST_URL", "https://console.vast.ai"
KEY_VARIABLE = "VAST_API_KEY"
KEY_FILES = (Path("~/.config/vastai/vast_api_key"), Path("~/.vast_api_key"))
LIST_EVERY_S, CREATE_EVERY_S, DESTROY_EVERY_S, SEARCH_EVERY_S = 1.1, 5.0, 3.3, 6.6  # and a tenth, for the way there
PAGE = 25
_NO_CREDIT = ("insufficient credit", "insufficient balance", "insufficient_credit", "insufficient_balance")


class NotThereError(ProviderError):
    """What was named isn't there (any more)."""


class TakenError(CapacityError):
    """Somebody else has the offer, or it can't start now."""


class StillbornError(ProviderError):
    """The create was refused, and made a stopped instance all the same, which bills its disk: a bid that is too low."""

    def __init__(self, message: str, instance: str) -> None:
        super().__init__(message)
        self.instance = instance


class _Told(BaseModel):
    # Strict: a field that changed its type is an error. Unknown fields are Vast.ai's to add.
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class Offer(_Told):
    id: int
    gpu_name: str
    num_gpus: int
    dph_base: float
    """$ an hour without disk; in a search for bids, of the lowest bid."""
    storage_cost: float
    """$ a GB and month of 720 h."""
    min_bid: float | None
    """$ an hour for the machine, below which a bid gets nothing."""
    inet_down_cost: float | None
    inet_up_cost: float | None
    geolocation: str | None


class Offers(_Told):
    offers: tuple[Offer, ...]


class Port(_Told):
    HostPort: str


class Instance(_Told):
    id: int
    label: str | None
    actual_status: str | None
    """The container's: None (being provisioned), created, loading, running, stopped, exited, offline, …"""
    cur_state: str
    """The contract's: running, stopped, unloaded (released)."""
    next_state: str
    intended_status: str
    status_msg: str | None
    public_ipaddr: str | None
    ports: dict[str, tuple[Port, ...]] | None = None
    """ "22/tcp" to where it is reached; only while it runs."""
    gpu_name: str | None
    num_gpus: int
    is_bid: bool
    dph_total: float
    """$ an hour while it runs, disk included."""
    storage_total_cost: float
    """$ an hour of its disk alone."""


class Page(_Told):
    instances: tuple[Instance, ...]
    next_token: str | None


class Created(_Told):
    success: bool
    new_contract: int | None = None
    error: str | None = None
    msg: str | None = None


class Destroyed(_Told):
    success: bool
    msg: str | None = None


class Vast:
    """The account that `key` belongs to."""

    def __init__(self, url: str, key: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.url = url
        self._rest = Rest(f"{url}/api", key, name="Vast.ai", translate=translated, pace=Pace(0.0), sleep=sleep)
        self._lists, self._creates, self._destroys, self._searches = (
            Pace(every_s, sleep=sleep) for every_s in (LIST_EVERY_S, CREATE_EVERY_S, DESTROY_EVERY_S, SEARCH_EVERY_S)
        )
        self._found: dict[str, tuple[Offer, ...]] = {}

    def search(self, query: Mapping[str, Any]) -> tuple[Offer, ...]:
        """What is offered now."""
        path, doing = "/v0/bundles/", "Vast.ai's offers"
        found = self._rest.call("POST", path, TypeAdapter(Offers), doing=doing, body=query, pace=self._searches)
        return found.offers

    def offers(self, query: Mapping[str, Any]) -> tuple[Offer, ...]:
        """What was offered when this process first asked: the preflight and the price must see the same."""
        text = json.dumps(query, sort_keys=True)
        if text not in self._found:
            self._found[text] = self.search(query)
        return self._found[text]

    def instances(self, ids: Iterable[str] | None = None) -> list[Instance]:
        """All of the account, or those called `ids`, in whatever state; a destroyed one drops out of it."""
        filters = {} if ids is None else {"id": {"in": sorted(map(int, ids))}}
        asked = {"limit": str(PAGE), "order_by": '[{"col":"id","dir":"asc"}]', "select_filters": json.dumps(filters)}
        found: list[Instance] = []
        tokens: set[str] = set()
        while True:
            path, doing = f"/v1/instances/?{urlencode(asked)}", "Vast.ai's instances"
            page = self._rest.call("GET", path, TypeAdapter(Page), doing=doing, pace=self._lists)
            found += page.instances
            if page.next_token is None:
                return found
            if page.next_token in tokens:
                raise ProviderError(f"{doing}: the same page comes again and again: run the command later")
            tokens.add(page.next_token)
            asked["after_token"] = page.next_token

    def create(self, offer: int, request: Mapping[str, Any], *, doing: str) -> str:
        """Id of the new instance. Raises TakenError, StillbornError, NoAnswerError when it may have been made."""
        path, answer = f"/v0/asks/{offer}/", TypeAdapter(Created)
        try:
            call = self._rest.call
            made = call("PUT", path, answer, doing=doing, body=request, repeatable=False, pace=self._creates)
        except NotThereError as error:  # of an offer: it has been taken
            raise TakenError(str(error)) from None
        if not made.success:
            raise translated(200, made.model_dump(), doing)
        if made.new_contract is None:
            raise NoAnswerError(f"{doing}: Vast.ai says that it was made, and not as what: run the command again")
        return str(made.new_contract)

    def destroy(self, id_: str) -> None:
        """Returns when it was asked for, not when it is gone. Raises NotThereError."""
        path, doing = f"/v0/instances/{id_}/", f"ending Vast.ai instance {id_}"
        done = self._rest.call("DELETE", path, TypeAdapter(Destroyed), doing=doing, pace=self._destroys)
        if not done.success:
            raise translated(200, done.model_dump(), doing)


def translated(status: int, body: Mapping[str, Any], doing: str) -> ProviderError:
    """Vast.ai's errors, sorted by what one can do about it. Its codes are few; the message tells more."""
    code = str(body.get("error") or f"status {status}")
    message = next((str(body[key]) for key in ("msg", "message", "detail") if body.get(key)), "")
    message = " ".join(message.split()).rstrip(".")
    told = f"{doing}: {message or 'refused without a reason'} ({code})"
    said = f"{code} {message}".lower()
    made = body.get("new_contract")
    if isinstance(made, int) and not isinstance(made, bool):
        return StillbornError(told, str(made))
    if "no_such_ask" in said:
        return TakenError(told)
    if any(each in said for each in _NO_CREDIT) or status == 402:
        return QuotaError(f"{told}: add credit at cloud.vast.ai/billing")
    if status in (401, 403) or code == "auth_error" or "invalid user key" in said:
        return AccessError(f"{told}: look at the key in {KEY_VARIABLE}, then repeat the command")
    if status == 404 or code in ("no_such_instance", "not_found"):
        return NotThereError(told)
    return ProviderError(told)


def connect() -> Vast:
    """By the key of the environment or of Vast.ai's own files; raises AccessError where there is none."""
    return _client(os.environ.get(URL_VARIABLE) or URL, _key())


@functools.cache
def _client(url: str, key: str) -> Vast:
    return Vast(url.rstrip("/"), key)


def _key() -> str:
    if key := os.environ.get(KEY_VARIABLE, "").strip():
        return key
    for file in KEY_FILES:
        try:
            key = file.expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError, RuntimeError):
            continue
        if key:
            return key
    raise AccessError(
        f"no key for Vast.ai: make one at cloud.vast.ai/manage-keys and set {KEY_VARIABLE} (or write it into "
        f"{KEY_FILES[0]})"
    )
