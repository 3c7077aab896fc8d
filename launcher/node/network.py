"""Which network interface carries an address on this node, and a free port on it."""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
from pathlib import Path

_SIOCGIFADDR = 0x8915


def interface_of(address: str) -> str | None:
    """The interface that has `address`; None when no interface has it or the system can't say."""
    wanted = ipaddress.ip_address(address)
    if wanted.is_loopback:
        return "lo" if sys.platform == "linux" else "lo0"
    if wanted.version == 6:
        return _interface_of_ipv6(wanted.packed.hex())
    if sys.platform != "linux":
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # an interface without an IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def _interface_of_ipv6(wanted: str) -> str | None:
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return None
    return next((line.split()[-1] for line in lines if line.split()[0] == wanted), None)


def has_interface(name: str) -> bool:
    return name in {known for _, known in socket.if_nameindex()}


def hold_free_port(address: str) -> tuple[int, socket.socket]:
    """A free TCP port on `address`, and the socket that keeps others from being given it.

    The socket is bound with SO_REUSEADDR and doesn't listen, so that the rendezvous store (which sets it too) can
    still listen on the port. Keep it open until then.
    """
    holder = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((address, 0))
    return int(holder.getsockname()[1]), holder
