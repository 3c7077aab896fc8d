"""Files and folders of a checkpoint: names, digests, atomic writes, and sending a file from node to node."""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainer.distributed import Processes
from trainer.errors import CheckpointError

MANIFEST = "manifest.json"
METADATA = ".metadata"
_STEP = re.compile(r"step-(\d{8,})")
_CHUNK = 16 * 2**20


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def read_manifests(folder: Path) -> dict[int, dict[str, Any]]:
    """Step → manifest, for each folder that has a readable one. Anything else in there is none of our business."""
    found = {}
    for path in folder.iterdir():
        match = _STEP.fullmatch(path.name)
        if not match:
            continue
        try:
            manifest = json.loads((path / MANIFEST).read_bytes())
        except (OSError, ValueError):
            continue
        if _well_formed(manifest) and manifest["step"] == int(match[1]):
            found[int(match[1])] = manifest
    return found


def _well_formed(manifest: Any) -> bool:
    return (
        isinstance(manifest, dict)
        and isinstance(manifest.get("files"), dict)
        and METADATA in manifest["files"]
        and all(Path(name).name == name for name in manifest["files"])
        and isinstance(manifest.get("time"), float)
        and isinstance(manifest.get("samples_seen"), int)
        and isinstance(manifest.get("config"), dict)
    )


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


def is_full(folder: Path) -> bool:
    """Whether the disk of `folder` takes no MiB more. Looks by writing: quotas don't show in the free space."""
    probe = folder / f".probe-{secrets.token_hex(4)}"
    try:
        with probe.open("wb") as file:
            file.write(bytes(2**20))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    finally:
        probe.unlink(missing_ok=True)
    return False


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def move_aside(folder: Path) -> None:
    """Makes room for a new folder of this name; one that was a checkpoint of ours goes, anything else is kept."""
    if not folder.exists():
        return
    aside = folder.with_name(f".{folder.name}.replaced-{secrets.token_hex(4)}")
    folder.rename(aside)
    if (aside / MANIFEST).exists():
        shutil.rmtree(aside)


def remove_partials(folder: Path) -> None:
    """Removes what an interrupted save left."""
    for path in folder.glob(".step-*.partial"):
        shutil.rmtree(path, ignore_errors=True)


def send_file(processes: Processes, path: Path, entry: dict[str, Any], *, source: int, receives: bool) -> None:
    """Copies a file from rank `source` to each rank that `receives`, in chunks. All ranks call it.

    Raises CheckpointError on all ranks when what arrived differs from the manifest or cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    sends = processes.rank == source
    what = f"copy {path.name} from rank {source}"

    def chunk(offset: int, data: torch.Tensor | None) -> torch.Tensor:
        size = min(_CHUNK, entry["size"] - offset)
        if sends:
            with path.open("rb") as file:
                file.seek(offset)
                return torch.frombuffer(bytearray(file.read(size)), dtype=torch.uint8)
        if data is not None and receives:
            with temporary.open("ab") as file:
                file.write(data.numpy().tobytes())
        return torch.empty(size, dtype=torch.uint8)

    for offset in range(0, entry["size"], _CHUNK):
        data = processes.together(lambda at=offset: chunk(at, None), error=CheckpointError, what=what)  # type: ignore[misc]
        dist.broadcast(data, src=source, group=processes.control)
        processes.together(
            lambda at=offset, received=data: None if sends else chunk(at, received),  # type: ignore[misc]
            error=CheckpointError,
            what=what,
        )

    def finish() -> None:
        if not receives:
            return
        if file_entry(temporary) != entry:
            temporary.unlink()
            raise OSError(f"{path.name} arrived damaged")
        temporary.rename(path)
        sync_folder(path.parent)

    processes.together(finish, error=CheckpointError, what=what)
