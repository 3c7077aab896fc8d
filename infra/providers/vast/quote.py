"""The price that the user was shown, on disk before a machine is asked for: offers go, and the next one may cost more.

What a machine is made from must not hold it: machines that run stay whatever the day's price is.
"""

from __future__ import annotations

import math
import os

from infra.errors import ProviderError
from infra.providers.base import Deployment
from infra.providers.vast.plan import TOLERANCE

_FILE = "vast_usd_per_hour"


def note(deployment: Deployment, usd_per_hour: float) -> None:
    """Of one machine, disk included."""
    deployment.key_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = deployment.key_folder / f".{_FILE}.{os.getpid()}"
    fresh.write_text(f"{usd_per_hour!r}\n", encoding="ascii")
    fresh.replace(deployment.key_folder / _FILE)


def most(deployment: Deployment) -> float:
    """Dollars an hour that a machine may cost. Raises ProviderError when nobody was shown a price."""
    path = deployment.key_folder / _FILE
    try:
        shown = float(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        shown = math.nan
    if not math.isfinite(shown):
        raise ProviderError(f"{path} doesn't tell the price that was shown: run `pulumi up`, which shows it, again")
    return shown * TOLERANCE
