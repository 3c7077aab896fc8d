"""Who: from a Cluster to key paths, a known_hosts file and routes. Pure but for the one file that it writes.

Everything that decides whether we talk to the right machine comes from the Cluster and the stack's own folder. The
user's ~/.ssh (config, keys, known_hosts) and agent are left out on purpose: a `Match`, `ProxyJump` or `Port` that
somebody once wrote for another network must not change where a training goes.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bootstrap.errors import KeyFileError
from infra.cluster import Cluster, Endpoint, Node

CONNECT_TIMEOUT_S = 15


def stack_folder(root: Path, stack: str) -> Path:
    return root / ".trainstack" / "stacks" / stack


def key_path(root: Path, stack: str) -> Path:
    """The stack's private key, made by `pulumi up`."""
    return stack_folder(root, stack) / "id_ed25519"


def endpoint(node: Node) -> Endpoint:
    """Where SSH connects to: the public address, else the private one as the head sees it."""
    return node.public or node.private


def known_host(where: Endpoint) -> str:
    """The name of a server in known_hosts, as OpenSSH writes it: a port other than 22 is part of the name."""
    return where.host if where.port == 22 else f"[{where.host}]:{where.port}"


def known_hosts_text(cluster: Cluster) -> str:
    """One line for each address of each node."""
    lines = []
    for node in cluster.nodes:
        key = " ".join(node.host_key.split()[:2])
        names = [known_host(where) for where in (node.public, node.private) if where is not None]
        lines.append(f"{','.join(dict.fromkeys(names))} {key}\n")
    return "".join(lines)


def write_known_hosts(cluster: Cluster, *, root: Path) -> Path:
    """Writes the stack's known_hosts in one go (a reader sees the old or the new file) and returns its path."""
    path = stack_folder(root, cluster.stack) / "known_hosts"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = known_hosts_text(cluster)
    if path.exists() and path.read_text("utf-8") == text:
        return path
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
        file.write(text)
    Path(file.name).replace(path)
    return path


def check_key_file(path: Path) -> None:
    """Refuses a private key file that can't work, by name, before anything is asked over the network.

    Raises KeyFileError: missing, a public or PuTTY key, open to other users, or (see `explain_passphrase`) encrypted.
    """
    try:
        head = path.read_bytes()[:200]
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise KeyFileError(f"the stack's key {path} isn't there: run `pulumi up`, which makes it") from None
    except OSError as error:
        raise KeyFileError(f"the stack's key {path} can't be read ({error.strerror}): correct its rights") from None
    if head.startswith((b"ssh-", b"ecdsa-", b"sk-")):
        raise KeyFileError(f"{path} is a public key (the .pub half): put the private key there")
    if head.startswith(b"PuTTY-User-Key-File"):
        raise KeyFileError(f"{path} is a PuTTY key: convert it with `puttygen KEY -O private-openssh -o {path}`")
    if mode & 0o077:
        raise KeyFileError(
            f"{path} has mode {mode & 0o777:04o}, so other users can read the key: "
            f"run `chmod 600 {shlex.quote(str(path))}`"
        )


def ssh_command(cluster: Cluster, node: Node, arguments: Sequence[str], *, root: Path) -> list[str]:
    """The argument list of OpenSSH's own client for a shell on `node`, or for the command `arguments`.

    As strict as the Fleet: only the stack's key and known_hosts, on the way through the head too. Raises KeyFileError.
    """
    check_key_file(key_path(root, cluster.stack))
    options = _options(write_known_hosts(cluster, root=root), key_path(root, cluster.stack))
    words = ["ssh", *options]
    if node.public is None:
        # Not ProxyJump: its inner ssh would read the user's config and known_hosts, not ours.
        via = ["ssh", *options, *_address(cluster.head), "-W", "[%h]:%p"]
        words += ["-o", f"ProxyCommand={' '.join(_proxy_word(word) for word in via)}"]
    words += [*_address(node)]
    if arguments:
        # ssh joins its arguments by blanks for the remote shell; so they are quoted here, once.
        words += ["--", shlex.join(arguments)]
    return words


def _options(known_hosts: Path, key: Path) -> list[str]:
    settings = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": _config_path(known_hosts),
        "GlobalKnownHostsFile": "none",
        "UpdateHostKeys": "no",
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "IdentityFile": _config_path(key),
        "ConnectTimeout": str(CONNECT_TIMEOUT_S),
        "ServerAliveInterval": "15",
        "LogLevel": "ERROR",
    }
    return ["-F", "none", *(word for name, value in settings.items() for word in ("-o", f"{name}={value}"))]


def _config_path(path: Path) -> str:
    """A path as an ssh option's value: quoted for blanks, and no % or ~ of it means anything."""
    return '"' + str(path.absolute()).replace("%", "%%") + '"'


def _proxy_word(word: str) -> str:
    """A word of a ProxyCommand, which ssh gives to a shell after expanding its own % sequences."""
    if word == "[%h]:%p":
        return word
    return shlex.quote(word.replace("%", "%%"))


def _address(node: Node) -> list[str]:
    where = endpoint(node)
    return ["-p", str(where.port), "-l", node.user, where.host]
