"""AWS's APIs through boto3: one place for deadlines, retries, and for what an exception means.

The region is always said; no client takes it from the user's environment by accident.
"""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    ReadTimeoutError,
)
from botocore.parsers import ResponseParserError

from infra.errors import AccessError, ProviderError
from infra.providers.aws import faults
from infra.providers.base import Deployment

# The last: an answer that isn't AWS's (a proxy's page), which botocore's own base class doesn't cover.
FAILURES = (ClientError, BotoCoreError, ResponseParserError)
IDENTITY_TAG, OWNER_TAG = "trainstack", "trainstack-owner"
# "standard" retries throttling, 5xx and broken connections with backoff and jitter, and repeats a call's ClientToken.
_ATTEMPTS = 6
_CONFIG = Config(
    connect_timeout=10,
    read_timeout=60,
    retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
    max_pool_connections=16,  # as many as leftovers.py asks at once
)
# EC2 says "no capacity" with status 500, which botocore would try again for half a minute: launches sort it out here.
_ONCE = Config(connect_timeout=10, read_timeout=60, retries={"mode": "standard", "total_max_attempts": 1})
_PASSING = frozenset(
    {"RequestLimitExceeded", "Throttling", "InternalError", "InternalFailure", "ServiceUnavailable", "Unavailable"}
)
_PASSING_EXCEPTIONS = (EndpointConnectionError, ConnectionClosedError, ConnectTimeoutError, ReadTimeoutError)
_LONGEST_PAUSE_S = 20.0
_KEYS_HOW = (
    "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (made under IAM, Security credentials), or run "
    "`aws sso login`"
)


@functools.cache
def _session() -> Any:
    session = boto3.session.Session()
    session.events.register("before-parse", _refuse_page)
    return session


def _refuse_page(*, response_dict: Mapping[str, Any], **_: object) -> None:
    """A proxy's page can be XML that botocore reads, and misses its own elements in with a KeyError."""
    start = bytes(response_dict.get("body") or b"")[:100].lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html")):
        raise ResponseParserError("the answer is a page for people, of a proxy perhaps, and not AWS's")


_MAKING = threading.Lock()  # a session may be used by one thread at a time, its clients by many
_clients: dict[tuple[str, str, bool], Any] = {}


def client(service: str, region: str, *, config: Config = _CONFIG) -> Any:
    """A client of one service in one region; raises AccessError when the profile that is named isn't there.

    All from one session, which reads each service's model once: EC2's takes half a second.
    """
    key = (service, region, config is _CONFIG)
    with _MAKING:
        if key not in _clients:
            _clients[key] = _made(service, region, config)
        return _clients[key]


def _made(service: str, region: str, config: Config) -> Any:
    try:
        return _session().client(service, region_name=region, config=config)
    except ProfileNotFound as error:
        raise AccessError(f"AWS: {error}: {_KEYS_HOW}") from None
    except (BotoCoreError, ValueError) as error:
        raise ProviderError(f"AWS, service {service} in region {region}: {error}: correct the region's name") from None


def ask(service: str, region: str, operation: str, *, where: str = "", **parameters: Any) -> dict[str, Any]:
    """The answer to one call. `where` begins the error's sentence. Raises AccessError, CapacityError and so on."""
    where = where or f"AWS {service} {operation} in {region}"
    try:
        answer: dict[str, Any] = getattr(client(service, region), operation)(**parameters)
    except FAILURES as error:
        raise translated(error, where=where) from None
    return answer


def launch(region: str, *, where: str, quota: str, sleep: Callable[[float], None], **parameters: Any) -> dict[str, Any]:
    """RunInstances, again with the same ClientToken while what went wrong passes; never after a refusal.

    `quota`: what it takes of which quota, since AWS's own refusal doesn't say.
    """
    for attempt in range(_ATTEMPTS):
        try:
            answer: dict[str, Any] = client("ec2", region, config=_ONCE).run_instances(**parameters)
            return answer
        except FAILURES as error:
            passing = code_of(error) in _PASSING or isinstance(error, _PASSING_EXCEPTIONS)
            if not passing or attempt == _ATTEMPTS - 1:
                raise translated(error, where=where, quota=quota) from None
            sleep(random.uniform(0, min(_LONGEST_PAUSE_S, 2.0**attempt)))  # noqa: S311  # jitter
    raise AssertionError("the last attempt raises")


def pages(service: str, region: str, operation: str, key: str, **parameters: Any) -> Iterator[dict[str, Any]]:
    """All items under `key` of all pages. An answer without `key` is an error and not "nothing"."""
    where = f"AWS {service} {operation} in {region}"
    try:
        connection = client(service, region)
        answers = (
            connection.get_paginator(operation).paginate(**parameters)
            if connection.can_paginate(operation)
            else [getattr(connection, operation)(**parameters)]
        )
        for answer in answers:
            if key not in answer:
                raise ProviderError(f"{where}: the answer has no {key}, so it tells nothing: run the command again")
            yield from answer[key]
    except FAILURES as error:
        raise translated(error, where=where) from None


def is_served(service: str, region: str) -> bool:
    """Whether the region has the service at all, by botocore's own list."""
    return any(region in _session().get_available_regions(service, each) for each in ("aws", "aws-us-gov", "aws-cn"))


def instances(region: str, filters: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """EC2's machines, as DescribeInstances tells them."""
    for reservation in pages("ec2", region, "describe_instances", "Reservations", Filters=list(filters)):
        yield from reservation.get("Instances", [])


def tagged(deployment: Deployment) -> list[dict[str, Any]]:
    """EC2's filter for what carries the stack's tag, whoever made it."""
    return [{"Name": f"tag:{IDENTITY_TAG}", "Values": [deployment.identity]}]


def code_of(error: Exception) -> str:
    """AWS's code of a ClientError, "" of anything else."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def translated(error: Exception, *, where: str, quota: str = "") -> ProviderError:
    if isinstance(error, ClientError):
        message = str(error.response.get("Error", {}).get("Message", ""))
        return faults.from_code(code_of(error), message, where=where, quota=quota)
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return AccessError(f"{where}: there are no credentials for AWS ({error}): {_KEYS_HOW}")
    return ProviderError(f"{where}: {' '.join(str(error).split())}: look at the connection and run the command again")


def tags(items: list[dict[str, str]] | None) -> dict[str, str]:
    return {item["Key"]: item["Value"] for item in items or []}
