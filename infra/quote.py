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


def note(deployment: Deployment, usd_per_hour: float | None) -> None:
    """Of all machines of the stack, disks included; None: that it is unknown was shown."""
    deployment.key_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = deployment.key_folder / f".{_FILE}.{os.getpid()}"
    fresh.write_text(f"{math.inf if usd_per_hour is None else usd_per_hour!r}\n", encoding="ascii")
    fresh.replace(deployment.key_folder / _FILE)


def most(deployment: Deployment) -> float:
    """Dollars an hour that they may cost, infinite where an unknown price was shown (a cap refuses that before).

    Raises ProviderError when nobody was shown anything.
    """
    path = deployment.key_folder / _FILE
    try:
        shown = float(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        shown = math.nan
    if math.isnan(shown):
        raise ProviderError(f"{path} doesn't tell the price that was shown: run `pulumi up`, which shows it, again")
    return shown * TOLERANCE


def too_much(usd_per_hour: float, most_usd: float) -> str:
    """For "costs …"; `most_usd`: what `most` said."""
    shown = most_usd / TOLERANCE
    return f"${usd_per_hour:.2f} per hour, more than 10 % above the ${shown:.2f} that were shown"
