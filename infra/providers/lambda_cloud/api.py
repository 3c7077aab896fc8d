"""Lambda's Cloud API, version 1.8.3 as published: the calls that we make, and what their answers must look like.

Limits by its description: one request a second, one launch each twelve seconds. Launches have no idempotency token.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter

from infra.errors import AccessError, CapacityError, ProviderError, QuotaError
from infra.rest import Pace, Rest

URL_VARIABLE, URL = "LAMBDA_CLOUD_BASE_URL", "https://cloud.lambda.ai"
KEY_VARIABLES = ("LAMBDA_API_KEY", "LAMBDA_CLOUD_API_TOKEN")
KEY_FILE = Path("~/.lambda_cloud/lambda_keys")
REQUEST_EVERY_S, LAUNCH_EVERY_S = 1.0, 12.0
NOT_THERE = "global/object-does-not-exist"
_IN_USE = "firewall-rulesets/firewall-ruleset-in-use"
_ACCESS = frozenset({"global/invalid-api-key", "global/account-inactive", "global/invalid-address"})
_T = TypeVar("_T")


class NotThereError(ProviderError):
    """What was named isn't there (any more)."""


class InUseError(ProviderError):
    """Something still needs it: later, it may be removed."""


class _Told(BaseModel):
    # Strict: a field that changed its type is an error. Unknown fields are Lambda's to add.
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class Answer(_Told, Generic[_T]):
    data: _T


class Region(_Told):
    name: str


class Specs(_Told):
    vcpus: int
    memory_gib: int
    storage_gib: int
    gpus: int


class Kind(_Told):
    """A machine type as Lambda describes it."""

    name: str
    gpu_description: str
    """"H100 (80 GB SXM5)"."""
    price_cents_per_hour: int
    specs: Specs


class Offer(_Told):
    instance_type: Kind
    regions_with_capacity_available: tuple[Region, ...]


class Tag(_Told):
    key: str
    value: str


class KindName(_Told):
    name: str
    price_cents_per_hour: int


class Instance(_Told):
    id: str
    name: str = ""
    ip: str = ""
    private_ip: str = ""
    status: Literal["booting", "active", "unhealthy", "terminated", "terminating", "preempted"]
    region: Region
    instance_type: KindName
    tags: tuple[Tag, ...] = ()


class Launched(_Told):
    instance_ids: tuple[str, ...]


class SshKey(_Told):
    id: str
    name: str
    public_key: str


class Rule(_Told):
    protocol: str
    port_range: tuple[int, int] | None = None
    source_network: str
    description: str = ""


class Ruleset(_Told):
    id: str
    name: str
    region: Region
    rules: tuple[Rule, ...]


class GlobalRules(_Told):
    rules: tuple[Rule, ...]


class Image(_Told):
    id: str
    family: str
    architecture: str
    region: Region


class Lambda:
    """The account that `key` belongs to."""

    def __init__(self, url: str, key: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
        pace = Pace(REQUEST_EVERY_S, sleep=sleep)
        self._rest = Rest(f"{url}/api/v1", key, name="Lambda", translate=translated, pace=pace, sleep=sleep)
        self._launches = Pace(LAUNCH_EVERY_S, sleep=sleep)

    @functools.cached_property
    def offers(self) -> dict[str, Offer]:
        """Asked for once a process: the plan, the price and the preflight must see the same."""
        return self._get("/instance-types", TypeAdapter(Answer[dict[str, Offer]]), "Lambda's machine types")

    def images(self) -> list[Image]:
        return self._get("/images", TypeAdapter(Answer[list[Image]]), "Lambda's images")

    def instances(self) -> list[Instance]:
        """All of the account; those that have ended drop out of it after a while."""
        return self._get("/instances", TypeAdapter(Answer[list[Instance]]), "Lambda's instances")

    def instance(self, id_: str) -> Instance:
        """Raises NotThereError."""
        return self._get(f"/instances/{id_}", TypeAdapter(Answer[Instance]), f"Lambda instance {id_}")

    def launch(self, request: Mapping[str, Any], *, doing: str) -> str:
        """Id of the new machine. Raises NoAnswerError when it may have been made all the same."""
        answer = TypeAdapter(Answer[Launched])
        path = "/instance-operations/launch"
        call = self._rest.call
        launched = call("POST", path, answer, doing=doing, body=request, repeatable=False, pace=self._launches).data
        if len(launched.instance_ids) != 1:
            raise ProviderError(
                f"{doing}: Lambda answered with {len(launched.instance_ids)} instances for one: run `fab leftovers`"
            )
        return launched.instance_ids[0]

    def terminate(self, id_: str) -> None:
        """Returns when it was asked for, not when it has ended. Raises NotThereError."""
        body = {"instance_ids": [id_]}
        path = "/instance-operations/terminate"
        self._rest.call("POST", path, TypeAdapter(Answer[Any]), doing=f"ending Lambda instance {id_}", body=body)

    def ssh_keys(self) -> list[SshKey]:
        return self._get("/ssh-keys", TypeAdapter(Answer[list[SshKey]]), "Lambda's SSH keys")

    def add_key(self, name: str, public_key: str) -> str:
        """Its id."""
        body = {"name": name, "public_key": public_key}
        doing = f"adding SSH key {name} to Lambda"
        return self._rest.call("POST", "/ssh-keys", TypeAdapter(Answer[SshKey]), doing=doing, body=body).data.id

    def remove_key(self, id_: str) -> None:
        self._rest.call("DELETE", f"/ssh-keys/{id_}", TypeAdapter(Any), doing=f"removing Lambda's SSH key {id_}")

    def rulesets(self) -> list[Ruleset]:
        return self._get("/firewall-rulesets", TypeAdapter(Answer[list[Ruleset]]), "Lambda's firewall rulesets")

    def global_rules(self) -> GlobalRules:
        return self._get("/firewall-rulesets/global", TypeAdapter(Answer[GlobalRules]), "Lambda's firewall rules")

    def add_ruleset(self, name: str, region: str, rules: list[dict[str, Any]]) -> str:
        """Its id."""
        body = {"name": name, "region": region, "rules": rules}
        doing = f"adding firewall ruleset {name} in {region}"
        path, answer = "/firewall-rulesets", TypeAdapter(Answer[Ruleset])
        return self._rest.call("POST", path, answer, doing=doing, body=body, repeatable=False).data.id

    def change_ruleset(self, id_: str, rules: list[dict[str, Any]]) -> None:
        doing = f"changing firewall ruleset {id_}"
        path = f"/firewall-rulesets/{id_}"
        self._rest.call("PATCH", path, TypeAdapter(Answer[Ruleset]), doing=doing, body={"rules": rules})

    def remove_ruleset(self, id_: str) -> None:
        doing = f"removing firewall ruleset {id_}"
        self._rest.call("DELETE", f"/firewall-rulesets/{id_}", TypeAdapter(Any), doing=doing)

    def _get(self, path: str, answer: TypeAdapter[Answer[_T]], doing: str) -> _T:
        return self._rest.call("GET", path, answer, doing=doing).data


def translated(status: int, body: Mapping[str, Any], doing: str) -> ProviderError:
    """Lambda's error codes, sorted by what one can do about it."""
    error = body.get("error")
    error = error if isinstance(error, Mapping) else {}
    code = str(error.get("code") or f"status {status}")
    message, hint = (" ".join(str(error.get(each) or "").split()).rstrip(".") for each in ("message", "suggestion"))
    told = f"{doing}: {message or 'refused without a reason'} ({code})"
    if code.endswith("/insufficient-capacity"):
        return CapacityError(told)
    if code.endswith("/quota-exceeded"):
        return QuotaError(f"{told}: ask Lambda's support for more, or for fewer nodes here")
    if code in _ACCESS or status in (401, 403):
        return AccessError(f"{told}: {hint or 'look at the key in ' + KEY_VARIABLES[0]}; then repeat the command")
    if code == NOT_THERE or status == 404:
        return NotThereError(told)
    if code == _IN_USE:
        return InUseError(told)
    return ProviderError(told + (f": {hint}" if hint else ""))


def connect() -> Lambda:
    """By the key of the environment or Lambda's own file; raises AccessError where there is none."""
    return _client(os.environ.get(URL_VARIABLE) or URL, _key())


@functools.cache
def _client(url: str, key: str) -> Lambda:
    return Lambda(url.rstrip("/"), key)


def _key() -> str:
    for name in KEY_VARIABLES:
        if key := os.environ.get(name, "").strip():
            return key
    try:
        lines = KEY_FILE.expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError, RuntimeError):
        lines = []
    for line in lines:
        name, _, value = line.partition("=")
        if name.strip() == "api_key" and value.strip():
            return value.strip()
    raise AccessError(
        f"no key for Lambda: make one at cloud.lambda.ai/api-keys and set {KEY_VARIABLES[0]} (or write "
        f"`api_key = …` into {KEY_FILE})"
    )
