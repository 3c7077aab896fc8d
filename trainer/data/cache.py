"""Shards from object storage on this node's disk: each is downloaded once for all of its ranks."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trainer.data.manifest import Manifest, Shard
from trainer.data.storage import Folder, explained
from trainer.data.verify import digest_of
from trainer.errors import DataError

_DOWNLOADS = 4  # at a time and rank
_ATTEMPTS = 2  # of a download that doesn't give the manifest's bytes


def default_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "trainstack" / "data"


class CachedStore:
    """A file is under its name only once its size and digest were those of the manifest; a lock file keeps others out
    meanwhile, and the kernel gives it free when its holder dies.
    """

    def __init__(self, folder: Folder, manifest: Manifest, *, root: Path, limit_bytes: int | None) -> None:
        """limit_bytes: shards used longest ago make room beyond it, all datasets under `root` counted."""
        self._folder, self._item_size, self._limit, self._root = folder, manifest.item_size, limit_bytes, root
        self._place = root / manifest.digest[:16]
        with explained(str(self._place), action="write to the cache"):
            self._place.mkdir(parents=True, exist_ok=True)
        self._pool = ThreadPoolExecutor(_DOWNLOADS, thread_name_prefix="download")
        self._wanted: dict[str, set[str]] = {}  # by split: evaluation doesn't push out what training reads

    def expect(self, shards: Sequence[Shard]) -> None:
        self._wanted.update({shard.split: set() for shard in shards})
        for shard in shards:
            self._wanted[shard.split].add(shard.file)
            self._pool.submit(self.path, shard)  # its error, if any, comes again when the shard is needed

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def path(self, shard: Shard) -> Path:
        target = self._place / shard.file
        with explained(str(target), action="write to the cache"):
            if self._whole(target, shard):
                return target
            with (self._place / f".{shard.file}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not self._whole(target, shard):
                    self._download(shard, target)
        return target

    def _whole(self, path: Path, shard: Shard) -> bool:
        """Its digest was compared before it got its name."""
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            return False
        if self._limit is not None:
            os.utime(path)  # for who makes room: used just now
        return size == shard.tokens * self._item_size

    def _download(self, shard: Shard, target: Path) -> None:
        expected = shard.tokens * self._item_size
        self._make_room(expected)
        partial = target.with_name(f".{target.name}.partial")
        for _ in range(_ATTEMPTS):
            self._folder.get(shard.file, partial)
            if partial.stat().st_size == expected and digest_of(partial) == shard.sha256:
                partial.replace(target)
                return
        found = partial.stat().st_size
        partial.unlink()
        what = f"has {found} bytes instead of {expected}" if found != expected else "has another digest"
        raise DataError(f"{self._folder.name(shard.file)} {what} than its manifest says; upload or prepare it again.")

    def _make_room(self, needed: int) -> None:
        if self._limit is None:
            return
        found = []
        for path in self._root.glob("*/*.bin"):
            try:
                found.append((path.stat().st_mtime_ns, path.stat().st_size, path))
            except FileNotFoundError:  # another rank made room
                continue
        total = sum(size for _, size, _ in found)
        wanted = {file for files in list(self._wanted.values()) for file in list(files)}
        for _, size, path in sorted(found):
            if total + needed <= self._limit:
                return
            if path.parent != self._place or path.name not in wanted:
                path.unlink(missing_ok=True)  # whoever has it mapped keeps it until done
                total -= size
