"""What the plug-in's resource types share: a `Kind` is one type; `Aws` calls boto3 in the resource's own region.

Requests are built along botocore's model of the operation: camelCase inputs become its members, and an input that has
no place there is refused, never dropped.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

ACCOUNT = "123456789012"
POLLS, POLL_S = 50, 0.1
# Where the SDK's name isn't AWS's; used when the operation has that member and none of the input's own name.
ALIASES = {
    "ami": "ImageId",
    "policy": "PolicyDocument",
    "securityGroups": "Groups",
    "vpcSecurityGroupIds": "SecurityGroupIds",
    "publicKey": "PublicKeyMaterial",
    "ipv4AddressCount": "SecondaryPrivateIpAddressCount",
    "availabilityZone": "AvailabilityZone",
    "name": "GroupName",
}
# Inputs that are the provider's own business.
OWN = frozenset({"region", "tags", "namePrefix", "keyNamePrefix", "bucketPrefix"})
Inputs = dict[str, Any]


class Unserved(Exception):
    """The real provider can do it, this one can't."""


class Aws:
    """The account, seen from one region."""

    def __init__(self, region: str) -> None:
        self.region = region

    def client(self, service: str) -> Any:
        return _client(service, self.region)

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """One call; arguments that are None are left out."""
        given = {key: value for key, value in arguments.items() if value is not None}
        return dict(getattr(self.client(service), operation)(**given))

    def ec2(self, operation: str, **arguments: Any) -> dict[str, Any]:
        return self.call("ec2", operation, **arguments)

    def shape(self, service: str, operation: str) -> Any:
        client = self.client(service)
        return client.meta.service_model.operation_model(client.meta.method_to_api_mapping[operation]).input_shape

    def arn(self, what: str, *, service: str = "ec2") -> str:
        return f"arn:aws:{service}:{self.region}:{ACCOUNT}:{what}"


@functools.cache
def _client(service: str, region: str) -> Any:
    return boto3.client(service, region_name=region, config=Config(retries={"mode": "standard", "max_attempts": 5}))


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One resource type: how it is made, looked up, changed and deleted."""

    create: Callable[[Aws, Inputs, dict[str, str]], str]
    """(aws, inputs, all tags) -> id."""
    read: Callable[[Aws, str, Inputs], dict[str, Any] | None]
    """(aws, id, state) -> what AWS says, tags as `tagsAll`; None when it is gone."""
    delete: Callable[[Aws, str, Inputs], None]
    replace: frozenset[str] = frozenset()
    """Inputs whose change makes a new resource."""
    updates: Mapping[str, Callable[[Aws, str, Inputs, Inputs], None]] = field(default_factory=dict)
    """Input -> (aws, id, old inputs, new inputs); a change of any other input is Unserved."""
    state_only: frozenset[str] = frozenset()
    """Inputs that only the provider itself reads."""
    settle: Callable[[Aws, str, Inputs], None] | None = None
    """What follows creation; if it fails, the resource is in the state as one that failed to initialise."""
    tag: Callable[[Aws, str, dict[str, str], dict[str, str]], None] | None = None
    """(aws, id, old tags, new tags); None for types without tags."""
    auto_name: str | None = None
    """The input that gets a name from the engine's when it isn't given."""
    longest_name: int = 255


# -- requests -------------------------------------------------------------------------------------------------------


def request(aws: Aws, service: str, operation: str, inputs: Inputs, *, without: frozenset[str] = OWN) -> dict[str, Any]:
    """`inputs` as the parameters of `operation`. Raises Unserved for an input that has no place in it."""
    return _structure(aws.shape(service, operation), {k: v for k, v in inputs.items() if k not in without})


def _structure(shape: Any, inputs: Inputs) -> dict[str, Any]:
    members = {name.lower(): name for name in shape.members}
    result = {}
    for key, value in inputs.items():
        if value is None or key.startswith("__"):
            continue
        name = members.get(key.lower()) or ALIASES.get(key)
        if name not in shape.members:
            raise Unserved(f"the stand-in doesn't serve the argument {key} of {shape.name}")
        result[name] = _convert(shape.members[name], value)
    return result


def _convert(shape: Any, value: Any) -> Any:
    if shape.type_name == "structure":
        return _structure(shape, value)
    if shape.type_name == "list":
        if isinstance(value, dict):
            return [{"Key": key, "Value": each} for key, each in value.items()]
        return [_convert(shape.member, each) for each in value]
    if shape.type_name == "boolean" and isinstance(value, str):
        return value.lower() == "true"
    if shape.type_name in ("integer", "long"):
        return int(value)
    return value


def specification(kind: str, tags: dict[str, str]) -> list[dict[str, Any]] | None:
    """TagSpecifications of a create call."""
    return [{"ResourceType": kind, "Tags": pairs(tags)}] if tags else None


def pairs(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def unpaired(tags: list[dict[str, str]] | None) -> dict[str, str]:
    """Tags as a map, without AWS's own."""
    return {tag["Key"]: tag.get("Value", "") for tag in tags or [] if not tag["Key"].startswith("aws:")}


# -- answers --------------------------------------------------------------------------------------------------------


def code(error: ClientError) -> str:
    return str(error.response["Error"]["Code"])


def is_gone(error: ClientError) -> bool:
    """Whether AWS says that there is no such thing."""
    said = code(error)
    return said in ("404", "NoSuchBucket", "NoSuchEntity", "NoSuchBucketPolicy", "NatGatewayNotFound") or any(
        mark in said for mark in ("NotFound", ".Unknown", "NoSuchPublicAccessBlock")
    )


def adopt(item: dict[str, Any]) -> dict[str, Any]:
    """AWS's answer in the SDK's names, as far as they are the same: scalars, and lists of them."""
    result: dict[str, Any] = {}
    for key, value in item.items():
        plain = isinstance(value, str | int | float | bool)
        if plain or (isinstance(value, list) and value and all(isinstance(each, str) for each in value)):
            result[key[0].lower() + key[1:]] = value
    if "Tags" in item or "TagSet" in item:
        result["tagsAll"] = unpaired(item.get("Tags") or item.get("TagSet"))
    return result


def described(
    aws: Aws, operation: str, parameter: str, result: str, each: str | list[dict[str, Any]]
) -> dict[str, Any] | None:
    """The one item that an EC2 Describe by id (or filters) has, or None."""
    try:
        items = aws.ec2(operation, **{parameter: each if isinstance(each, list) else [each]})[result]
    except ClientError as error:
        if is_gone(error):
            return None
        raise
    return dict(items[0]) if items else None


def quietly(call: Callable[[], Any]) -> None:
    """A deletion, for which "there is no such thing" is success."""
    try:
        call()
    except ClientError as error:
        if not is_gone(error):
            raise


def tag_ec2(aws: Aws, resource: str, old: dict[str, str], new: dict[str, str]) -> None:
    """Change an EC2 resource's tags."""
    dropped = [{"Key": key} for key in old if key not in new]
    if dropped:
        aws.ec2("delete_tags", Resources=[resource], Tags=dropped)
    changed = {key: value for key, value in new.items() if old.get(key) != value}
    if changed:
        aws.ec2("create_tags", Resources=[resource], Tags=pairs(changed))


def poll(what: str, ready: Callable[[], bool]) -> None:
    """As the real provider waits for a state. Raises TimeoutError after POLLS."""
    for _ in range(POLLS):
        if ready():
            return
        time.sleep(POLL_S)
    raise TimeoutError(f"{what}: not there after {POLLS} polls")
