"""Checkpoints in a folder: one that all nodes share, or one on each node's own disk; which, is found by looking."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from trainer.checkpoint import peers
from trainer.checkpoint.claim import NOTE
from trainer.checkpoint.manifest import (
    MANIFEST,
    METADATA,
    Manifest,
    accepts,
    encode,
    foreign,
    parse,
    step_name,
    step_of,
)
from trainer.checkpoint.store import Entry
from trainer.checkpoint_files import digest_of, file_entry, sync_folder, write_atomically
from trainer.distributed import Processes
from trainer.errors import CheckpointError

DOWNLOADS = ".download"  # what is fetched from elsewhere, for as long as it is being read
_PROBE = ".probe-"
_FREE_FILES = 64  # inodes that a save must find: files, metadata, manifest and their temporary names


class Folder:
    """A `Store`. `step-00000100/` has the files and, written last, manifest.json; `.step-00000100.partial` is no
    checkpoint. Ranks on other nodes have their own folder of this name or the same one."""

    def __init__(self, path: Path, processes: Processes, *, mates: list[int] | None = None) -> None:
        """mates: the ranks whose folder is the same as ours; None: that is found out by writing to it."""
        self.path, self.place, self._processes = path, str(path), processes
        self.mates = self._find_mates() if mates is None else mates
        self.owner = self.mates[0] == processes.rank
        self._holders: dict[str, list[int]] = {}

    def _find_mates(self) -> list[int]:
        """Ranks whose folder is the same as ours, found by looking: no setting could be wrong."""
        here, path = self._processes, self.path
        here.together(
            lambda: path.mkdir(parents=True, exist_ok=True), error=CheckpointError, what=f"use the folder {path}"
        )
        nonce = here.from_rank(secrets.token_hex(8) if here.rank == 0 else None, source=0)
        probe = path / f"{_PROBE}{nonce}-{here.rank}"
        here.together(lambda: probe.write_bytes(b""), error=CheckpointError, what=f"write to {path}")
        mates = sorted(int(found.name.rpartition("-")[2]) for found in path.glob(f"{_PROBE}{nonce}-*"))
        here.barrier()
        probe.unlink(missing_ok=True)
        return mates

    def _partial(self, step: int) -> Path:
        return self.path / f".{step_name(step)}.partial"

    # ---- writing

    def read_note(self) -> bytes | None:
        try:
            return (self.path / NOTE).read_bytes()
        except FileNotFoundError:
            return None

    def write_note(self, data: bytes) -> None:
        write_atomically(self.path / NOTE, data)

    def clear(self) -> None:
        for path in (*self.path.glob(".step-*.partial"), self.path / DOWNLOADS):
            _remove_folder(path, ignore_errors=True)
        for pattern in ("step-*/.*.tmp", f".{NOTE}.*.tmp", f"{_PROBE}*"):
            for path in self.path.glob(pattern):
                path.unlink(missing_ok=True)

    def look(self) -> tuple[dict[int, Manifest], list[str], list[str]]:
        found: dict[int, Manifest] = {}
        notes, damaged = [], []
        for path in sorted(self.path.iterdir()):
            step = step_of(path.name)
            if step is None:
                continue
            try:
                found[step] = parse((path / MANIFEST).read_bytes(), step=step)
            except FileNotFoundError:
                notes.append(f"{path} has no {MANIFEST}, so it is no checkpoint")
            except NotADirectoryError:
                notes.append(f"{path} is a file, not a checkpoint")
            except ValueError as error:
                damaged.append(f"{path / MANIFEST} {error}")
        return found, notes, damaged

    def begin(self, step: int) -> None:
        self.abandon(step)
        self._partial(step).mkdir()

    def abandon(self, step: int) -> None:
        if os.path.lexists(self._partial(step)):
            _remove_folder(self._partial(step))

    def put(self, step: int, name: str, pieces: Iterable[memoryview]) -> Entry:
        try:
            return _write(self._partial(step) / name, pieces)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            reason = f"disk full at {self.path}: {error.strerror}; make room there, then repeat the same run"
            raise OSError(error.errno, reason) from error

    def reread(self, step: int, name: str) -> Entry:
        return file_entry(self._partial(step) / name)

    def complete(self, step: int, manifest: Manifest) -> None:
        partial, final = self._partial(step), self.path / step_name(step)
        write_atomically(partial / MANIFEST, encode(manifest))
        self._move_aside(final)
        partial.rename(final)
        sync_folder(self.path)

    def _move_aside(self, folder: Path) -> None:
        """Makes room for a checkpoint of this name; one of ours goes, anything else is kept."""
        if not folder.exists():
            return
        ours = (folder / MANIFEST).exists()
        aside = folder.with_name(f".{folder.name}.replaced-{secrets.token_hex(4)}{'.partial' if ours else ''}")
        folder.rename(aside)
        if ours:
            _remove_folder(aside)

    def remove(self, step: int) -> None:
        removed = self._partial(step)  # under this name it is no checkpoint, and `clear` ends an interrupted removal
        (self.path / step_name(step)).rename(removed)
        _remove_folder(removed)

    def check_room(self, size: int, *, keep: int) -> None:
        disk = os.statvfs(self.path)
        free = disk.f_bavail * disk.f_frsize
        if disk.f_files and disk.f_favail < _FREE_FILES:
            raise OSError(f"{self.path} is on a disk with {disk.f_favail} free inodes: remove files there")
        kept = min(keep, len(self.look()[0]))
        wanted = (keep + 1 - kept) * size
        if free < wanted:
            raise OSError(
                f"{self.path} has {free / 2**20:,.1f} MiB free and {keep + 1 - kept} more checkpoints need at least "
                f"{wanted / 2**20:,.1f} MiB: free space there, lower checkpoint.keep or change checkpoint.location"
            )

    def set_aside(self) -> None:
        if not self.look()[0]:
            return
        place = self.path.resolve()  # a link stays, so that new checkpoints go to the disk that it means
        aside = place.with_name(f"{place.name}.before-{time.time_ns()}")
        if place.is_mount():  # can't be renamed: what is in it can
            aside = place / aside.name
            aside.mkdir()
            for path in sorted(place.glob("step-*"), reverse=True):  # the newest first: it alone would be resumed from
                path.rename(aside / path.name)
        else:
            place.rename(aside)
            place.mkdir()

    # ---- reading

    def verify(self, step: int, manifest: Manifest) -> list[str]:
        """Ranks on one folder share the work of hashing."""
        names = sorted(manifest["files"])
        share = names[self.mates.index(self._processes.rank) :: len(self.mates)]
        folder = self.path / step_name(step)
        intact = [name for name in share if accepts(manifest["files"][name], digest_of(folder / name))]
        self._holders = {name: [] for name in names}
        for owner, found in self._processes.gather((self.mates[0], intact)):
            for name in found:
                self._holders[name].append(owner)
        return sorted(name for name, ranks in self._holders.items() if not ranks)

    def read(self, step: int, name: str, manifest: Manifest) -> bytes:
        source = min(self._holders[name])
        here, path = self._processes, self.path / step_name(step) / name
        data = here.together(
            lambda: path.read_bytes() if here.rank == source else b"", error=CheckpointError, what=f"read {path}"
        )
        del manifest  # verified before
        return here.from_rank(data, source=source)

    def bring(self, step: int, manifest: Manifest, names: Iterable[str]) -> Path:
        """Copies from other nodes what this one lacks, so that it has a usable copy again."""
        here, folder = self._processes, self.path / step_name(step)
        what = f"complete {folder}"
        here.together(lambda: folder.mkdir(exist_ok=True), error=CheckpointError, what=what)
        needs = self._needs(names)
        for name in sorted(needs):
            missing = needs[name] - set(self._holders[name])
            if missing:
                source, receives = min(self._holders[name]), here.rank in missing
                peers.send_file(here, folder / name, manifest["files"][name], source=source, receives=receives)

        def complete() -> None:
            if self.owner:
                write_atomically(folder / MANIFEST, encode(manifest))

        here.together(complete, error=CheckpointError, what=what)
        return folder

    def _needs(self, names: Iterable[str]) -> dict[str, set[int]]:
        """File → owners of the folders whose ranks read it. All ranks call it, each with its own names."""
        needs: dict[str, set[int]] = {}
        for owner, wanted in self._processes.gather((self.mates[0], sorted({METADATA, *names}))):
            for name in wanted:
                needs.setdefault(name, set()).add(owner)
        return needs

    def forget(self, step: int) -> None:
        del step  # what was brought is a checkpoint of this folder now


def _remove_folder(path: Path, *, ignore_errors: bool = False) -> None:
    """A link to a folder goes alone: what it leads to is somebody else's."""
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=ignore_errors)


def _write(path: Path, pieces: Iterable[memoryview]) -> Entry:
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
            size += piece.nbytes
        file.flush()
        os.fsync(file.fileno())
        # What is read back must come from the disk, not from the memory that it was written from.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return {"size": size, "sha256": digest.hexdigest()}


def contents(path: Path) -> list[str]:
    """The names in a folder; raises OSError."""
    return [entry.name for entry in path.iterdir()]


def find(path: Path) -> tuple[Path, int]:
    """(location, step) of the checkpoint that a user means by `path`: itself, or the newest in a location or a run.

    Raises CheckpointError with the reason in one sentence.
    """
    try:
        if not path.exists():
            near = sorted(contents(path.parent)) if path.parent.is_dir() else []
            close = [name for name in near if step_of(name) is not None or name == "checkpoints"]
            hint = f"; there are {', '.join(close)} in {path.parent}" if close else ""
            raise CheckpointError(f"there is no checkpoint {path}{hint}; give one that exists.")
        if path.is_file():
            raise CheckpointError(f"{path} is a file, not a checkpoint; give the folder step-… of one.")
        names = contents(path)
        if step_of(path.name) is not None and MANIFEST in names:
            parse((path / MANIFEST).read_bytes(), step=step_of(path.name))
            return path.parent, step_of(path.name) or 0
        if "checkpoints" in names:
            path, names = path / "checkpoints", contents(path / "checkpoints")
        steps: list[int] = [step for name in names if (step := step_of(name)) is not None]
        complete = [step for step in steps if (path / step_name(step) / MANIFEST).exists()]
        if complete:
            return path, max(complete)
    except OSError as error:
        raise CheckpointError(f"cannot read the checkpoint {path}: {error.strerror or error}.") from None
    except ValueError as error:
        raise CheckpointError(f"{path / MANIFEST} {error}.") from None
    raise CheckpointError(f"{path} is not a checkpoint: it {foreign(names)}.")


def checked_manifest(folder: Path, *, wanted: Callable[[str], bool]) -> Manifest:
    """The manifest of one checkpoint folder, after a look at the `wanted` files. Raises CheckpointError."""
    try:
        manifest = parse((folder / MANIFEST).read_bytes())
    except OSError as error:
        raise CheckpointError(f"there is no checkpoint {folder}: {error.strerror}.") from None
    except ValueError as error:
        raise CheckpointError(f"{folder / MANIFEST} {error}.") from None
    names = [name for name in sorted(manifest["files"]) if wanted(name)]
    lost = [name for name in names if not accepts(manifest["files"][name], digest_of(folder / name))]
    if lost:
        raise CheckpointError(
            f"{folder} lacks {', '.join(lost)}, or they are damaged; with nodes that share no storage, copy all nodes' "
            "folders of this step into one."
        )
    return manifest
