"""The price that the user was shown, on disk before a machine is asked for: offers go, and the next one may cost more.

What a machine is made from must not hold it: machines that run stay whatever the day's price is.
"""

from __future__ import annotations

import math
import os

from infra.errors import ProviderError
from infra.providers.base import Deployment

TOLERANCE = 1.1
"""How far machines may be dearer than what the user was shown."""
_FILE = "usd_per_hour_shown"


def note(deployment: Deployment, usd_per_hour: float) -> None:
    """Of all machines of the stack, disks included."""
    deployment.key_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = deployment.key_folder / f".{_FILE}.{os.getpid()}"
    fresh.write_text(f"{usd_per_hour!r}\n", encoding="ascii")
    fresh.replace(deployment.key_folder / _FILE)


def most(deployment: Deployment) -> float:
    """Dollars an hour that they may cost. Raises ProviderError when nobody was shown a price."""
    path = deployment.key_folder / _FILE
    try:
        shown = float(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        shown = math.nan
    if not math.isfinite(shown):
        raise ProviderError(f"{path} doesn't tell the price that was shown: run `pulumi up`, which shows it, again")
    return shown * TOLERANCE


def too_much(usd_per_hour: float, most_usd: float) -> str:
    """For "costs …"; `most_usd`: what `most` said."""
    shown = most_usd / TOLERANCE
    return f"${usd_per_hour:.2f} per hour, more than 10 % above the ${shown:.2f} that were shown"
