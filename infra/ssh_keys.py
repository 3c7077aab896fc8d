"""SSH key pairs of our own: a stack's, and each machine's host key. Made here, never learnt from the network."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from infra.errors import ProviderError


def make_pair(path: Path, *, comment: str) -> str:
    """An ed25519 pair at `path` (mode 600) and `path`.pub, made if missing; returns "ssh-ed25519 AAAA…".

    Written beside and renamed: a killed `pulumi up` leaves a whole key or none. Raises ProviderError when what is
    there can't be read as a key.
    """
    public = path.with_name(path.name + ".pub")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(path, Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    half = _public_half(path)
    if not public.exists() or public.read_bytes().split()[:2] != half.encode().split():
        _write(public, f"{half} {comment}\n".encode())
    return half


def _public_half(path: Path) -> str:
    try:
        key = load_ssh_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it has a passphrase
        raise ProviderError(
            f"{path} is not a private key that can be used ({error}): remove it if it was never used, else restore it"
        ) from None
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def _write(path: Path, content: bytes) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(path)
