"""What the operations that were added to moto share."""

from __future__ import annotations

import secrets
from typing import Any

from moto.ec2.exceptions import EC2ClientError


class Refused(EC2ClientError):
    """A refusal from inside an operation of moto's: moto writes it in the service's protocol, with status 400."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)


def new_id(prefix: str) -> str:
    """An id of EC2's form."""
    return f"{prefix}-{secrets.token_hex(9)[:17]}"


def tag_specification(response: Any, resource_type: str) -> dict[str, str]:
    """The tags of the request; another type's specification is refused, as EC2 does."""
    found: dict[str, str] = {}
    for specification in response._get_param("TagSpecifications", []):
        if specification.get("ResourceType") != resource_type:
            raise Refused(
                "InvalidParameterValue",
                f"'{specification.get('ResourceType')}' is not a valid taggable resource type for this operation.",
            )
        found |= {tag["Key"]: tag.get("Value", "") for tag in specification.get("Tags", [])}
    return found
