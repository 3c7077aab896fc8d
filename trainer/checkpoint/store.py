"""Where checkpoints are kept: what a folder and a bucket have in common, and which of them a location means."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from trainer.checkpoint.manifest import Manifest
from trainer.distributed import Processes

Entry = dict[str, Any]
"""{"size": bytes, "sha256": hex} of a file."""

BUCKETS = ("s3://", "gs://")


class Store(Protocol):
    """One place for checkpoints, as one rank sees it. What fails raises OSError, whatever is behind it."""

    place: str
    """For messages: the folder or the URL."""
    mates: list[int]
    """The ranks that write to the same place; the lowest, its owner, begins, completes and removes checkpoints."""
    owner: bool

    def read_note(self) -> bytes | None:
        """The note of trainer.checkpoint.claim."""

    def write_note(self, data: bytes) -> None:
        """Replaces it as a whole."""

    def clear(self) -> None:
        """Removes what interrupted saves left. Owner only."""

    def look(self) -> tuple[dict[int, Manifest], list[str], list[str]]:
        """Step → manifest of all that is a checkpoint; notes about what looks like one and isn't; manifests that are
        damaged, in words."""

    def begin(self, step: int) -> None:
        """Makes room for the files of `step`, which isn't a checkpoint before `complete`. Owner only."""

    def put(self, step: int, name: str, pieces: Iterable[memoryview]) -> Entry:
        """Writes one file; durable when this returns. Its size and digest are those of the bytes that were given."""

    def reread(self, step: int, name: str) -> Entry:
        """Size and digest of a file that was put, as the storage gives it back."""

    def complete(self, step: int, manifest: Manifest) -> None:
        """Writes the manifest: from here on it is a checkpoint. Owner only."""

    def abandon(self, step: int) -> None:
        """Removes the files of a save that failed, unless it is a checkpoint after all. Owner only."""

    def remove(self, step: int) -> None:
        """Owner only. An interruption leaves nothing half valid."""

    def check_room(self, size: int, *, keep: int) -> None:
        """Raises OSError when `keep` checkpoints of `size` bytes and one more can't fit, or nothing can be written."""

    def set_aside(self) -> None:
        """Moves all checkpoints out of the way without deleting them. Owner only."""

    # ---- reading, by all ranks together; what is damaged raises CheckpointError, what can't be known now Unreachable

    def verify(self, step: int, manifest: Manifest) -> list[str]:
        """The files of a checkpoint that no rank can get intact."""

    def read(self, step: int, name: str, manifest: Manifest) -> bytes:
        """A small file's content, on all ranks, checked against the manifest."""

    def bring(self, step: int, manifest: Manifest, names: Iterable[str]) -> Path:
        """The local folder in which this rank finds the files `names`, checked against the manifest."""

    def forget(self, step: int) -> None:
        """`bring`'s files aren't needed any more."""


def is_bucket(location: str) -> bool:
    return location.startswith(BUCKETS)


def open_store(location: str, *, scratch: Path, processes: Processes) -> Store:
    """The store at a location: a URL of a bucket or the path of a folder. scratch: a local folder for downloads."""
    if is_bucket(location):
        from trainer.checkpoint.bucket import Bucket

        return Bucket(location, scratch=scratch, processes=processes)
    from trainer.checkpoint.folder import Folder

    return Folder(Path(location), processes)
