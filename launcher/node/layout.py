"""Where a run's files stand on a node, and how they are written so that a reader never sees half of one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESERVE_BYTES = 256 * 1024
_PROBE_BYTES = 64 * 1024


@dataclass(frozen=True)
class RunFolder:
    """`<work_dir>/runs/<run id>/` on one node."""

    path: Path

    @property
    def spec(self) -> Path:
        """What to run: written once by `start`."""
        return self.path / "run.json"

    @property
    def state(self) -> Path:
        """What the supervisor last knew; replaced atomically."""
        return self.path / "state.json"

    @property
    def go(self) -> Path:
        """Where the rendezvous is: its arrival starts torchrun."""
        return self.path / "go.json"

    @property
    def stop(self) -> Path:
        """A wish to stop, with its grace."""
        return self.path / "stop.json"

    @property
    def log(self) -> Path:
        """All output of the node in one append-only file of whole lines."""
        return self.path / "output.log"

    @property
    def merged(self) -> Path:
        """How far each source is in `log`: the write-ahead note of the merger."""
        return self.path / "merged.json"

    @property
    def reserve(self) -> Path:
        """Bytes given back to a full disk, so that the end of the run can still be written down."""
        return self.path / "reserve"

    @property
    def runs(self) -> Path:
        return self.path.parent

    def source(self, name: str) -> Path:
        """The raw output of one source: "torchrun", "supervisor" or "rank-3"."""
        return self.path / "sources" / f"{name}.log"


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`, or None when it isn't there or isn't an object."""
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_json(path: Path, value: Mapping[str, Any], *, durable: bool = True) -> None:
    """Replaces `path` in one step. Raises OSError; the temporary file is removed then."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(value, file)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def disk_error(error: OSError, path: Path) -> str:
    """One sentence about a failed write, with the room that is left."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free_mib = shutil.disk_usage(path).free // 1024**2
        return f"disk full at {path} ({free_mib} MiB free): remove old runs or checkpoints there"
    return f"{error.strerror or error} ({error.filename or path})"


def full_disk(folder: Path) -> str | None:
    """`disk_error` when the disk of `folder` is full; None when it takes a small file. Looks by writing, as quotas and
    reserved blocks don't show in the free space."""
    probe = folder / f".probe.{os.getpid()}"
    try:
        with probe.open("wb") as file:
            file.write(b"\0" * _PROBE_BYTES)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return disk_error(error, folder)
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
    return None


def write_state(folder: RunFolder, value: Mapping[str, Any]) -> None:
    """`write_json` for the state, which gives the reserve back when the disk is full."""
    try:
        write_json(folder.state, value)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        folder.reserve.unlink(missing_ok=True)
        write_json(folder.state, value)


class Claim:
    """The node's exclusive right to train: a lock that the supervisor holds for its life.

    The kernel drops it when the holder dies, so a stale claim can't exist; the content only says whose it is.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def take(self) -> bool:
        """True when the claim is now ours; it stays with forked children too."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def holder(self) -> dict[str, Any]:
        """What the last holder wrote: run, node, since. Empty when nothing readable stands there."""
        try:
            value = json.loads(os.pread(self._descriptor, 65536, 0))
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    def sign(self, value: Mapping[str, Any]) -> None:
        data = json.dumps(value).encode()
        os.pwrite(self._descriptor, data, 0)
        os.ftruncate(self._descriptor, len(data))

    def close(self) -> None:
        os.close(self._descriptor)


def claim_path(folder: RunFolder, node: str) -> Path:
    """One claim a node, even where several nodes share one work folder."""
    return folder.runs / f"active-{node}.lock"
