"""The registry: the one place where a provider's name meets its module.

A provider is imported only when its stack is used.
"""

from __future__ import annotations

import importlib
from typing import cast

from infra.errors import SpecError
from infra.providers.base import Provider

MODULES: dict[str, str] = {
    "aws": "infra.providers.aws",
    "gcp": "infra.providers.gcp",
    "lambda": "infra.providers.lambda_cloud",
    "local": "infra.providers.local",
    "runpod": "infra.providers.runpod",
    "vast": "infra.providers.vast",
}


def load(name: str) -> Provider:
    """The provider called `name`; raises SpecError with the names there are."""
    if name not in MODULES:
        raise SpecError(f"there is no provider {name!r}: take one of {', '.join(sorted(MODULES))}")
    return cast(Provider, importlib.import_module(MODULES[name]).PROVIDER)
