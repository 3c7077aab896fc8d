"""The address that this machine is seen with from outside: whom a new cluster lets in by default, and nobody else."""

from __future__ import annotations

import http.client
import ipaddress
import urllib.request
from collections.abc import Sequence

from infra.errors import ProviderError

# Plain services that answer with the caller's address; the first is Amazon's own.
SERVICES = ("https://checkip.amazonaws.com", "https://api.ipify.org")
_TIMEOUT_S = 10


def find(services: Sequence[str] = SERVICES) -> str:
    """As a network, "203.0.113.7/32". Raises ProviderError when no service answers with an address."""
    said = []
    for url in services:
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310  # our own constants
                # An address, and no network: "0.0.0.0/0" would open SSH to the world.
                return str(ipaddress.ip_network(ipaddress.ip_address(answer.read(100).decode("ascii").strip())))
        except (OSError, ValueError, http.client.HTTPException) as error:
            said.append(f"{url}: {' '.join(str(error).split())}")
    raise ProviderError(
        f"the address that this machine is seen with could not be found ({'; '.join(said)}): write it into "
        'the stack file, as in `ssh_from: ["203.0.113.7"]`'
    )
