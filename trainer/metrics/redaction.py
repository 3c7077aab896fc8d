"""Secrets never reach a log: what the environment holds under a telling name, and passwords in addresses."""

import os
import re
from typing import Any

_TELLING = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_IN_ADDRESS = re.compile(r"(\w://[^\s/@:]*):[^\s/@]+@")
_SHORTEST = 6  # a shorter value would blot out ordinary words


def redact(text: str) -> str:
    secrets = [value for name, value in os.environ.items() if _TELLING.search(name) and len(value) >= _SHORTEST]
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "[redacted]")
    return _IN_ADDRESS.sub(r"\1:[redacted]@", text)


def redact_all(value: Any) -> Any:
    """The same in nested plain values."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: redact_all(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact_all(item) for item in value]
    return value
