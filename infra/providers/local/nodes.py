"""One node of a local stack, in plain Python: create, look whether it lives, give it more time, end it.

`create` may be repeated and may be killed at any moment: what it makes is found by name and marker, never by a record,
and a second `create` first removes what the first one left.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from infra import ssh_keys
from infra.cluster import node_names
from infra.errors import ProviderError
from infra.providers.local import guard, isolation, network, sshd, system
from infra.providers.local.isolation import Mode
from infra.providers.local.layout import MARKER, Layout, NodeLayout

END_DEADLINE_S = 15.0
_PORT_TRIES = 3
_SHM_FLOOR = 64 << 20


@dataclass(frozen=True, kw_only=True)
class NodeRequest:
    """A node as asked for."""

    name: str
    rank: int
    nodes: int
    mode: Mode
    subnet: str
    """ "10.83.7.0/24"; "" in loopback mode."""
    public_key: str
    """The stack's, which may log in."""
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class CreatedNode:
    """A node that answers."""

    address: str
    port: int
    user: str
    host_key: str
    work_dir: str
    interface: str
    provider_id: str


def create(layout: Layout, request: NodeRequest) -> CreatedNode:
    """Make the node and return when its sshd answers. A failure (ProviderError) leaves nothing behind."""
    node = layout.node(request.name)
    destroy(layout, request.name)
    try:
        host_key = _write_disk(node, request)
        if request.mode == "namespace":
            address, port = _start_in_namespace(node, request), 22
        else:
            address, port = "127.0.0.1", _start_on_loopback(node)
    except (ProviderError, OSError) as error:
        destroy(layout, request.name)
        if isinstance(error, OSError):
            raise ProviderError(f"{request.name}: {error.strerror}: {error.filename}") from None
        raise
    return CreatedNode(
        address=address,
        port=port,
        user="root" if request.mode == "namespace" else getpass.getuser(),
        host_key=host_key,
        work_dir=str(node.work),
        interface="eth0" if request.mode == "namespace" else "lo" if sys.platform.startswith("linux") else "lo0",
        provider_id=node.namespace,
    )


def is_alive(layout: Layout, name: str) -> bool:
    """Whether the node's guard runs: it lives as long as the node's sshd. A connection that fails says nothing."""
    return any(process.is_guard and process.node == name for process in system.processes(layout))


def set_expiry(node: NodeLayout, expires_at: datetime) -> None:
    """Move the node's end; its guard notices by itself."""
    fresh = node.deadline.with_name(f".{node.deadline.name}.{os.getpid()}")
    fresh.write_text(f"{expires_at.timestamp()}\n")
    fresh.replace(node.deadline)


def destroy(layout: Layout, name: str) -> None:
    """End the node and remove all but its empty folder, which the other nodes cover. Repeating it is fine."""
    node = layout.node(name)
    _end(lambda: [process for process in system.processes(layout) if process.node == name or _inside(node, process)])
    network.unplug(layout, name=name)
    if node.folder.is_dir():
        for entry in node.folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                network.remove_folder(entry)
            else:
                entry.unlink(missing_ok=True)


def end_processes(layout: Layout) -> None:
    """End every process of the stack."""
    _end(lambda: system.processes(layout))


def _inside(node: NodeLayout, process: system.Process) -> bool:
    """Whether a process without a readable marker is in the node's namespace, or runs its configuration."""
    try:
        own = Path("/run/netns", node.namespace).stat().st_ino
        return Path(f"/proc/{process.pid}/ns/net").stat().st_ino == own
    except OSError:
        return f"{node.etc}/" in process.command


def _end(find: Callable[[], list[system.Process]]) -> None:
    """SIGKILL until nothing is found; raises ProviderError with what can't be ended."""
    end = time.monotonic() + END_DEADLINE_S
    while found := find():
        for process in found:
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            except PermissionError:
                raise ProviderError(
                    f"process {process.pid} ({process.command[:60]}) is another user's: end it as that user or as root"
                ) from None
        if time.monotonic() > end:
            raise ProviderError(f"process {found[0].pid} ({found[0].command[:60]}) can't be ended: look at it with ps")
        time.sleep(0.02)


def _write_disk(node: NodeLayout, request: NodeRequest) -> str:
    """The node's folders and files; returns its public host key."""
    node.folder.mkdir(parents=True, exist_ok=True)
    for folder in (node.home, node.work, node.bin, node.etc, node.tmp):
        folder.mkdir()
    node.etc.chmod(0o700)
    node.tmp.chmod(0o1777)
    host_key = ssh_keys.make_pair(node.etc / "host_key", comment=node.name)
    _private(node.etc / "authorized_keys", request.public_key + "\n")
    set_expiry(node, request.expires_at)
    (node.bin / "python3").symlink_to(Path(sys.executable).resolve())
    uv = shutil.which("uv", path=f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if uv is None:
        raise ProviderError("uv is not in the project's virtual environment: run `make setup`")
    (node.bin / "uv").symlink_to(Path(uv).resolve())
    return host_key


def _start_in_namespace(node: NodeLayout, request: NodeRequest) -> str:
    """Wire the node to the hub and start it; returns its address."""
    base, _, prefix = request.subnet.partition("/")
    address = f"{base.rpartition('.')[0]}.{network.FIRST_NODE_PART + request.rank}"
    network.plug_in(node.stack, name=node.name, address=address, prefix=int(prefix))
    _write_etc(node, address)
    _write_sshd_config(node, address=address, port=22)
    others = [node.stack.node(name).folder for name in node_names(request.nodes) if name != node.name]
    script = isolation.init_script(
        node,
        command=_sshd_command(node),
        shm_bytes=_shm_bytes(request.nodes),
        hidden=[*others, *_controller_files(node.stack)],
    )
    _private(node.etc / "init.sh", script)
    process = _start(node, isolation.enter(node))
    sshd.await_banner(node, process, address=address, port=22)
    return address


def _start_on_loopback(node: NodeLayout) -> int:
    """Start the node's sshd on a free port; returns the port. Another program may take it first, so try again."""
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # root's sshd insists on it; the package makes it at boot
    for attempt in range(_PORT_TRIES):
        port = _free_port()
        _write_sshd_config(node, address="127.0.0.1", port=port)
        process = _start(node, _sshd_command(node))
        try:
            sshd.await_banner(node, process, address="127.0.0.1", port=port)
        except ProviderError:
            if attempt == _PORT_TRIES - 1 or "in use" not in sshd.log_tail(node):
                raise
            continue
        if process.poll() is None:
            return port
    raise ProviderError(f"{node.name}: no free port could be had on 127.0.0.1 in {_PORT_TRIES} tries")


def _start(node: NodeLayout, command: list[str]) -> subprocess.Popen[bytes]:
    """Start the node under its guard, detached from us: own session, nothing inherited, nothing of our environment."""
    setpriv = sshd.find("setpriv")
    if setpriv is not None:
        command = [setpriv, "--pdeathsig", "KILL", *command]  # whoever kills the guard ends the node too
    with node.log.open("ab") as log:
        return subprocess.Popen(
            [str(Path(sys.executable).resolve()), "-I", "-S", str(guard.__file__), str(node.deadline), "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={"PATH": sshd.PATH_ON_NODE, "LANG": "C.UTF-8", MARKER: node.marker},
            start_new_session=True,
        )


def _sshd_command(node: NodeLayout) -> list[str]:
    program = sshd.find("sshd")
    if program is None:
        raise ProviderError("sshd is not installed: apt-get install openssh-server (or your system's package)")
    return [program, "-D", "-f", str(node.etc / "sshd_config"), "-E", str(node.log)]


def _write_sshd_config(node: NodeLayout, *, address: str, port: int) -> None:
    environment = sshd.environment(node, uv_cache=_uv_cache(node))
    _private(node.etc / "sshd_config", sshd.configuration(node, address=address, port=port, environment=environment))


def _uv_cache(node: NodeLayout) -> str:
    done = subprocess.run(
        [str(node.bin / "uv"), "cache", "dir"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ProviderError(f"`uv cache dir` failed: {done.stderr.strip()}")
    return done.stdout.strip()


def _write_etc(node: NodeLayout, address: str) -> None:
    """The node's own passwd (root's home is the node's), shadow (nobody has a password) and hosts."""
    accounts = [line.split(":") for line in Path("/etc/passwd").read_text(errors="replace").splitlines() if ":" in line]
    for account in accounts:
        if account[0] == "root":
            account[5] = str(node.home)
    (node.etc / "passwd").write_text("".join(":".join(account) + "\n" for account in accounts))
    (node.etc / "passwd").chmod(0o644)
    _private(node.etc / "shadow", "".join(f"{account[0]}:*:19000:0:99999:7:::\n" for account in accounts))
    (node.etc / "hosts").write_text(f"127.0.0.1 localhost\n{address} {node.name}\n")


def _controller_files(layout: Layout) -> list[Path]:
    """What is the user's machine's and no node's: keys, passphrase, state, run records, other stacks."""
    ours = layout.folder.parents[1]
    names = ("stacks", "passphrase", "pulumi", "pulumi_home", "runs")
    others = [path for path in layout.folder.parent.iterdir() if path != layout.folder]
    return [path for path in [*(ours / name for name in names), *others] if path.exists()]


def _shm_bytes(nodes: int) -> int:
    """The node's share of half the memory, as Linux gives half to /dev/shm of one machine."""
    return max(_SHM_FLOOR, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 // nodes)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _private(path: Path, text: str) -> None:
    """Write a file that only its owner reads, from its first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
