"""What the nodes of a local stack share: folders, and in namespace mode a hub with a bridge. Steps may be repeated."""

from __future__ import annotations

import fcntl
import ipaddress
import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from infra.cluster import node_names
from infra.errors import ProviderError
from infra.providers.local import isolation, system
from infra.providers.local.layout import Layout

HOST_PART, FIRST_NODE_PART = 254, 1  # last byte of the host's and of rank 0's address


def prepare_folders(layout: Layout, *, nodes: int, shared: bool) -> None:
    """Make every node's folder before any node: each covers the others' folders, so they must be there."""
    layout.folder.mkdir(parents=True, exist_ok=True)
    for name in node_names(nodes):
        folder = layout.node(name).folder
        if not folder.is_dir():
            folder.mkdir(mode=0o755)
            _hide_from_running(layout, folder)
    if shared:
        layout.shared.mkdir(exist_ok=True)


def _hide_from_running(layout: Layout, folder: Path) -> None:
    """Cover a folder that was added after other nodes were started."""
    for pid in system.first_processes(layout):
        run(["nsenter", "--mount", "--target", str(pid), *isolation.hide(folder)])


def create_hub(layout: Layout) -> str:
    """Bridge in a namespace of its own, with one link to the host; returns the subnet, such as "10.83.7.0/24".

    What a killed earlier try left is removed first.
    """
    with _one_at_a_time():
        remove_hub(layout)
        subnet = free_subnet(routes(), start=int(layout.deployment.digest, 16))
        host = subnet.network_address + HOST_PART
        run(["ip", "netns", "add", layout.hub])
        inside = ["ip", "-n", layout.hub]
        run([*inside, "link", "add", "bridge", "type", "bridge"])
        run([*inside, "link", "set", "bridge", "up"])
        run(["ip", "link", "add", layout.link, "type", "veth", "peer", "name", "host", "netns", layout.hub])
        run([*inside, "link", "set", "host", "master", "bridge", "up"])
        run(["ip", "addr", "add", f"{host}/{subnet.prefixlen}", "dev", layout.link])
        run(["ip", "link", "set", layout.link, "up"])
    return str(subnet)


def hub_is_there(layout: Layout) -> bool:
    return layout.hub in system.namespaces() and layout.link in system.links()


def remove_hub(layout: Layout) -> None:
    if layout.link in system.links():
        remove_link(layout.link)
    if layout.hub in system.namespaces():
        remove_namespace(layout.hub)


def plug_in(layout: Layout, *, name: str, address: str, prefix: int) -> None:
    """A namespace for the node, with its address on eth0, on the hub's bridge."""
    namespace = layout.node(name).namespace
    port = name.replace("node-", "n")
    run(["ip", "netns", "add", namespace])
    hub = ["ip", "-n", layout.hub]
    # The hardware address follows from the IP address: a node made anew is reached at once, though its neighbours (and
    # the host) still remember the old one's.
    hardware = ":".join(["02", "54", *(f"{byte:02x}" for byte in ipaddress.IPv4Address(address).packed)])
    cable = ["type", "veth", "peer", "name", "eth0", "address", hardware, "netns", namespace]
    run([*hub, "link", "add", port, *cable])
    run([*hub, "link", "set", port, "master", "bridge", "up"])
    inside = ["ip", "-n", namespace]
    run([*inside, "link", "set", "lo", "up"])
    run([*inside, "addr", "add", f"{address}/{prefix}", "dev", "eth0"])
    run([*inside, "link", "set", "eth0", "up"])


def unplug(layout: Layout, *, name: str) -> None:
    """The inverse. The bridge's end of the cable goes at once; a namespace alone would take it away only by and by."""
    node = layout.node(name)
    if layout.hub in system.namespaces():
        command = ["ip", "-n", layout.hub, "link", "del", name.replace("node-", "n")]
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)  # not there: fine
    if node.namespace in system.namespaces():
        remove_namespace(node.namespace)


def remove_link(name: str) -> None:
    run(["ip", "link", "del", name], gone="Cannot find device")


def remove_namespace(name: str) -> None:
    run(["ip", "netns", "del", name], gone="No such file")


def remove_folder(folder: Path) -> None:
    """Remove a tree; already gone is success."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ProviderError(f"{folder} can't be removed: {error.strerror}: {error.filename}") from None


def remove_all(layout: Layout) -> None:
    """Everything but processes: links, namespaces, folders. Repeating it is fine."""
    remove_hub(layout)
    for name in sorted(system.namespaces()):
        if name.startswith(layout.namespace_prefix):
            remove_namespace(name)
    remove_folder(layout.folder)


def free_subnet(taken: Sequence[ipaddress.IPv4Network], *, start: int) -> ipaddress.IPv4Network:
    """A /24 of 10.64.0.0/10 that overlaps no route; `start` spreads stacks out, so that they rarely want the same."""
    count = 1 << 14
    base = int(ipaddress.IPv4Address("10.64.0.0"))
    for step in range(count):
        candidate = ipaddress.IPv4Network((base + ((start + step) % count) * 256, 24))
        if not any(candidate.overlaps(network) for network in taken):
            return candidate
    raise ProviderError("no free /24 network is left in 10.64.0.0/10: `ip route` shows what takes them")


def routes() -> list[ipaddress.IPv4Network]:
    said = run(["ip", "-4", "-json", "route", "show", "table", "all"])
    try:
        destinations = [route["dst"] for route in json.loads(said or "[]")]
        # "default" takes nothing: a narrower route always wins over it.
        return [ipaddress.IPv4Network(each) for each in destinations if each[0].isdigit() and each != "0.0.0.0/0"]
    except (ValueError, KeyError, TypeError):
        raise ProviderError(f"`ip -json route` gave an answer that can't be read: {said[:80]!r}") from None


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two stacks' `up`s at once must not choose one subnet. The lock goes with the process, however it ends."""
    with Path("/proc/self/ns/net").open("rb") as namespace:
        fcntl.flock(namespace, fcntl.LOCK_EX)
        yield


def run(command: Sequence[str], *, gone: str | None = None) -> str:
    """A system command's output; raises ProviderError with what it said. `gone` in it means: already done."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0 and not (gone and gone in done.stderr):
        raise ProviderError(f"`{' '.join(command)}` failed: {' '.join(done.stderr.split()) or done.returncode}")
    return done.stdout
