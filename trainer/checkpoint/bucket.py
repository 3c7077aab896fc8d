"""Checkpoints in object storage (s3://, gs://), through fsspec. Credentials come from the environment only.

There is no rename there: the files of a step lie under their final names, and the manifest, one atomic object written
last, makes them a checkpoint. An upload that fails is given up part by part, so that no object stands for half a file.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import fsspec

from trainer.checkpoint.claim import NOTE
from trainer.checkpoint.folder import Folder
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
from trainer.checkpoint_files import file_entry
from trainer.distributed import Processes
from trainer.errors import CheckpointError, ConfigError, Unreachable

_BEGUN = ".begun"  # an empty object: with it and without a manifest, a folder is a save of ours that didn't end
_BLOCK = 64 * 2**20  # bytes of one part of a multi-part upload, and of one read

T = TypeVar("T")


class _Unanswered(OSError):
    """Nothing is known of what is there: no answer after all the client's retries, or a refusal."""


def _filesystem(url: str) -> tuple[Any, tuple[type[Exception], ...]]:
    """The fsspec file system of a URL, and what its calls may raise."""
    protocol = url.partition("://")[0]
    try:
        # Listings are never cached: another rank or another run may have written since.
        system = fsspec.filesystem(protocol, use_listings_cache=False, skip_instance_cache=True)
        if protocol == "s3":
            from botocore.exceptions import BotoCoreError, ClientError

            return system, (OSError, BotoCoreError, ClientError, RuntimeError)
        from aiohttp import ClientError as HttpClientError
        from gcsfs.retry import HttpError

        return system, (OSError, HttpClientError, HttpError, RuntimeError)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{url} cannot be reached: {error}; install the package for it, or use a folder.") from None


class Bucket:
    """A `Store`, written to by all ranks. Downloads go to the folder `scratch` of each node."""

    def __init__(self, url: str, *, scratch: Path, processes: Processes) -> None:
        self.place, self._processes = url.rstrip("/"), processes
        self._root = self.place.partition("://")[2]
        self._files, self._failures = _filesystem(url)
        self.mates = list(range(processes.world))
        self.owner = processes.rank == 0
        self._scratch, self._local = scratch, Folder(scratch.parent, processes)
        if self._local.owner:
            shutil.rmtree(scratch, ignore_errors=True)  # what a killed run downloaded

    @contextmanager
    def _as_os_error(self, path: str) -> Iterator[None]:
        """path: bucket and key, for the message."""
        where = f"{self.place.partition('://')[0]}://{path}"
        try:
            yield
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{where} is not there: {error}") from error
        except self._failures as error:
            raise _Unanswered(f"{where}: {' '.join(str(error).split())}") from error

    def _path(self, step: int, name: str = "") -> str:
        return f"{self._root}/{step_name(step)}" + (f"/{name}" if name else "")

    def _sizes(self, folder: str) -> dict[str, int]:
        """Object name → bytes below a folder; empty when there is none."""
        with self._as_os_error(folder):
            found = self._files.find(folder, detail=True)
        return {path[len(folder) + 1 :]: int(info["size"]) for path, info in found.items()}

    def _get(self, path: str) -> bytes:
        """A small object, whole."""
        with self._as_os_error(path):
            data: bytes = self._files.cat_file(path)
            return data

    def _set(self, path: str, data: bytes) -> None:
        with self._as_os_error(path):
            self._files.pipe_file(path, data)

    # ---- writing

    def read_note(self) -> bytes | None:
        try:
            return self._get(f"{self._root}/{NOTE}")
        except FileNotFoundError:
            return None

    def write_note(self, data: bytes) -> None:
        self._set(f"{self._root}/{NOTE}", data)

    def clear(self) -> None:
        """What a killed run left: files of a save that didn't end, and multi-part uploads, invisible and billed."""
        names = self._sizes(self._root)
        for step in [_step_below(name) for name in names if name.endswith(f"/{_BEGUN}")]:
            if step is not None and f"{step_name(step)}/{MANIFEST}" not in names:
                self.remove(step)
        if not hasattr(self._files, "list_multipart_uploads"):
            return
        bucket, _, prefix = self._root.partition("/")
        with self._as_os_error(bucket):
            for upload in self._files.list_multipart_uploads(bucket):
                if upload["Key"].startswith(f"{prefix}/step-" if prefix else "step-"):
                    self._files.abort_mpu(bucket, upload["Key"], upload["UploadId"])

    def look(self) -> tuple[dict[int, Manifest], list[str], list[str]]:
        found: dict[int, Manifest] = {}
        notes, damaged = [], []
        names = self._sizes(self._root)
        for folder in sorted({name.partition("/")[0] for name in names if "/" in name}):
            step = step_of(folder)
            if step is None:
                continue
            if f"{folder}/{MANIFEST}" not in names:
                notes.append(f"{self.place}/{folder} has no {MANIFEST}, so it is no checkpoint")
                continue
            try:
                found[step] = parse(self._get(self._path(step, MANIFEST)), step=step)
            except ValueError as error:
                damaged.append(f"{self.place}/{folder}/{MANIFEST} {error}")
        return found, notes, damaged

    def begin(self, step: int) -> None:
        if self._sizes(self._path(step)):
            self.remove(step)
        self._set(self._path(step, _BEGUN), b"")

    def abandon(self, step: int) -> None:
        names = self._sizes(self._path(step))
        if names and MANIFEST not in names:
            self.remove(step)

    def put(self, step: int, name: str, pieces: Iterable[memoryview]) -> Entry:
        digest, size, path = hashlib.sha256(), 0, self._path(step, name)
        with self._as_os_error(path):
            file = self._files.open(path, "wb", block_size=_BLOCK)
            try:
                for piece in pieces:
                    file.write(piece)
                    digest.update(piece)
                    size += piece.nbytes
                file.close()
            except BaseException:
                self._give_up(file)
                raise
        return {"size": size, "sha256": digest.hexdigest()}

    def _give_up(self, file: Any) -> None:
        """Closing a file would complete the upload with what there is of it: so it must never be closed."""
        file.closed = True
        try:
            file.discard()
        except self._failures as error:
            print(f"note: {self.place}: an upload was left unfinished: {error}", flush=True)

    def reread(self, step: int, name: str) -> Entry:
        digest, size, path = hashlib.sha256(), 0, self._path(step, name)
        with self._as_os_error(path), self._files.open(path, "rb", block_size=_BLOCK) as file:
            while data := file.read(_BLOCK):
                digest.update(data)
                size += len(data)
        return {"size": size, "sha256": digest.hexdigest()}

    def complete(self, step: int, manifest: Manifest) -> None:
        self._set(self._path(step, MANIFEST), encode(manifest))

    def remove(self, step: int) -> None:
        with self._as_os_error(self._path(step)):
            if self._files.exists(self._path(step, MANIFEST)):
                self._files.rm_file(self._path(step, MANIFEST))  # without it, it is no checkpoint
            self._files.rm([f"{self._path(step)}/{name}" for name in self._sizes(self._path(step))])

    def check_room(self, size: int, *, keep: int) -> None:
        """Object storage has no end, but it can be read-only, or not there."""
        del size, keep
        probe = f"{self._root}/.probe-{secrets.token_hex(8)}"
        with self._as_os_error(probe):
            self._files.pipe_file(probe, b"")
            self._files.rm_file(probe)

    def set_aside(self) -> None:
        if self.look()[0]:
            raise OSError(
                "it holds checkpoints of another run, and object storage has no rename: "
                "set checkpoint.location to a new prefix"
            )

    # ---- reading

    def verify(self, step: int, manifest: Manifest) -> list[str]:
        """By size: digests are checked when a file is read."""

        def compare() -> list[str]:
            if not self.owner:
                return []
            sizes = self._sizes(self._path(step))
            return sorted(name for name, entry in manifest["files"].items() if sizes.get(name) != entry["size"])

        what = f"list {self.place}/{step_name(step)}"
        lost = self._processes.together(compare, error=CheckpointError, what=what)
        return self._processes.from_rank(lost, source=0)

    def read(self, step: int, name: str, manifest: Manifest) -> bytes:
        what = f"read {self.place}/{step_name(step)}/{name}"

        def fetch() -> bytes:
            if not self.owner:
                return b""
            data = self._get(self._path(step, name))
            found = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            if not accepts(manifest["files"][name], found):
                raise OSError(f"{name} is damaged")
            return data

        return self._processes.from_rank(self._fetched(fetch, what), source=0)

    def _fetched(self, action: Callable[[], T], what: str) -> T:
        """`action` on each rank. What is damaged or not there raises CheckpointError on all, no answer Unreachable:
        to go on from an older checkpoint because of an outage would throw work away."""
        here = self._processes
        silence: str | None = None

        def act() -> T | None:
            nonlocal silence
            try:
                return action()
            except _Unanswered as error:
                silence = f"rank {here.rank}: {error}"
                return None

        result = here.together(act, error=CheckpointError, what=what)
        problems = [text for text in here.gather(silence) if text]
        if problems:
            raise Unreachable(f"cannot {what} ({'; '.join(problems)}); when it answers again, repeat the same command.")
        return result  # type: ignore[return-value]  # set, or we raised

    def bring(self, step: int, manifest: Manifest, names: Iterable[str]) -> Path:
        """Downloads what this node's ranks read; they share the work."""
        here, mates = self._processes, self._local.mates
        wanted = {name for owner, part in here.gather((mates[0], sorted(names))) if owner == mates[0] for name in part}
        mine = sorted(wanted)[mates.index(here.rank) :: len(mates)]
        folder = self._scratch / step_name(step)

        def download() -> None:
            folder.mkdir(parents=True, exist_ok=True)
            for name in mine:
                self._download(step, name, folder / name, manifest["files"][name])

        self._fetched(download, f"download {self.place}/{step_name(step)}")
        return folder

    def _download(self, step: int, name: str, target: Path, entry: Entry) -> None:
        digest, size, path = hashlib.sha256(), 0, self._path(step, name)
        with (
            self._as_os_error(path),
            self._files.open(path, "rb", block_size=_BLOCK) as source,
            target.open("wb") as file,
        ):
            while data := source.read(_BLOCK):
                file.write(data)
                digest.update(data)
                size += len(data)
        if not accepts(entry, {"size": size, "sha256": digest.hexdigest()}):
            raise OSError(f"{name} is damaged there")

    def forget(self, step: int) -> None:
        self._processes.barrier()  # all have read
        if self._local.owner:
            shutil.rmtree(self._scratch / step_name(step), ignore_errors=True)


def _step_below(name: str) -> int | None:
    return step_of(name.partition("/")[0])


def find(url: str) -> tuple[str, int]:
    """(location, step) of the checkpoint that a user means by `url`: itself, or the newest below it.

    Raises CheckpointError with the reason in one sentence.
    """
    url = url.rstrip("/")
    files, failures = _filesystem(url)
    root = url.partition("://")[2]
    try:
        names = [path[len(root) + 1 :] for path in files.find(root)]
    except failures as error:
        raise CheckpointError(f"cannot read the checkpoint {url}: {error}.") from None
    step = step_of(url.rpartition("/")[2])
    if step is not None and MANIFEST in names and METADATA in names:
        return url.rpartition("/")[0], step
    steps = [found for name in names if name.endswith(f"/{MANIFEST}") and (found := _step_below(name)) is not None]
    if steps:
        return url, max(steps)
    raise CheckpointError(f"{url} is not a checkpoint: it {foreign([name.partition('/')[0] for name in names])}.")


def download(location: str, step: int, folder: Path, *, wanted: Callable[[str], bool]) -> Manifest:
    """One checkpoint's `wanted` files into a folder, checked against the manifest. Raises CheckpointError."""
    files, failures = _filesystem(location)
    root = f"{location.partition('://')[2]}/{step_name(step)}"
    try:
        manifest = parse(files.cat_file(f"{root}/{MANIFEST}"), step=step)
        for name in filter(wanted, manifest["files"]):
            files.get_file(f"{root}/{name}", str(folder / name))
            if not accepts(manifest["files"][name], file_entry(folder / name)):
                raise CheckpointError(f"{location}/{step_name(step)}/{name} is damaged; use another checkpoint.")
    except failures as error:
        raise CheckpointError(f"cannot read {location}/{step_name(step)}: {error}.") from None
    except ValueError as error:
        raise CheckpointError(f"{location}/{step_name(step)}/{MANIFEST} {error}.") from None
    return manifest
