"""A node's SSH server: its host key, its configuration, and whether it answers."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping

from infra.errors import ProviderError
from infra.providers.local.layout import NodeLayout

_SBIN = ("/usr/sbin", "/usr/local/sbin", "/sbin", "/opt/homebrew/sbin")
BANNER_DEADLINE_S = 20.0
PATH_ON_NODE = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def find(program: str) -> str | None:
    """Absolute path (sshd insists on one) of a system program, also where a user's PATH has no sbin."""
    return shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *_SBIN]))


def configuration(node: NodeLayout, *, address: str, port: int, environment: Mapping[str, str]) -> str:
    """The text of sshd_config: our key only, no passwords, nothing from the host's /etc/ssh."""
    lines = [
        f"ListenAddress {address}:{port}",
        f"HostKey {_quoted(node.etc / 'host_key')}",
        f"AuthorizedKeysFile {_quoted(node.etc / 'authorized_keys').replace('%', '%%')}",
        "PidFile none",
        "AuthenticationMethods publickey",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password",
        # The files are ours, but a group-writable folder above the checkout (umask 002) would lock us out.
        "StrictModes no",
        "UsePAM no",
        "UseDNS no",
        "AllowTcpForwarding yes",
        "X11Forwarding no",
        "PrintMotd no",
        "MaxStartups 1000",
        "MaxSessions 1000",
        "LogLevel INFO",
        "Subsystem sftp internal-sftp",
        # One line: sshd heeds only the first SetEnv.
        "SetEnv " + " ".join(_quoted(f"{name}={value}") for name, value in environment.items()),
    ]
    if _version() >= (9, 8):
        lines.append("PerSourcePenalties no")  # looking whether it answers isn't an attack
    return "\n".join(lines) + "\n"


def environment(node: NodeLayout, *, uv_cache: str) -> dict[str, str]:
    """What a session on the node starts with."""
    return {
        "HOME": str(node.home),
        "PATH": f"{node.bin}:{PATH_ON_NODE}",
        "LANG": "C.UTF-8",
        # Environments are hard-linked from the host's cache: no disk, no network.
        "UV_CACHE_DIR": uv_cache,
        "UV_OFFLINE": "1",
        "TRAINSTACK_NODE": node.marker,
    }


def await_banner(node: NodeLayout, process: subprocess.Popen[bytes], *, address: str, port: int) -> None:
    """Return when the server says "SSH-2.0"; raises ProviderError with the log's end when it ended, or not in time.

    `process` is the node's guard, which ends when the server does.
    """
    end = time.monotonic() + BANNER_DEADLINE_S
    while not answers(address, port=port):
        if process.poll() is not None:
            raise ProviderError(f"{node.name}: its sshd ended at once: {log_tail(node)}")
        if time.monotonic() > end:
            raise ProviderError(
                f"{node.name}: sshd at {address}:{port} said nothing in {BANNER_DEADLINE_S:.0f} s: {log_tail(node)}"
            )
        time.sleep(0.05)


def answers(address: str, *, port: int, timeout_s: float = 2.0) -> bool:
    try:
        with socket.create_connection((address, port), timeout=timeout_s) as connection:
            return connection.recv(8).startswith(b"SSH-2.0")
    except OSError:
        return False


def log_tail(node: NodeLayout, *, lines: int = 5) -> str:
    try:
        said = node.log.read_text(errors="replace").split("\n")
    except OSError:
        said = []
    text = (
        " | ".join(line.strip() for line in said if line.strip()) if len(said) <= lines else " | ".join(said[-lines:])
    )
    return f"its log says: {text.strip(' |')}" if text.strip(" |") else f"its log {node.log} is empty"


def _quoted(value: object) -> str:
    return f'"{value}"'  # the preflight refuses roots with a quote or a backslash


def _version() -> tuple[int, int]:
    said = subprocess.run(["ssh", "-V"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False).stderr
    match = re.search(r"OpenSSH_(\d+)\.(\d+)", said)
    return (int(match[1]), int(match[2])) if match else (0, 0)
