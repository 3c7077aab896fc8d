"""Files that are there in full or not at all, and their digests."""

import hashlib
import os
import secrets
from pathlib import Path
from typing import Any


def file_entry(path: Path) -> dict[str, Any]:
    """{"size": bytes, "sha256": hex}. Raises OSError."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"size": os.fstat(file.fileno()).st_size, "sha256": digest}


def digest_of(path: Path) -> dict[str, Any] | None:
    """The entry of a file, or None when it cannot be read."""
    try:
        return file_entry(path)
    except OSError:
        return None


def write_atomically(path: Path, data: bytes) -> None:
    """The file has either its old content or all of the new one, also after a power cut."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
