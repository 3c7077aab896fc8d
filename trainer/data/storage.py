"""One folder interface over a local disk and object storage (s3://, gs://, anything fsspec opens).

A file appears under its name only when it is whole: locally by a rename, in object storage because a put is atomic.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer.errors import DataError

_ADVICE = {
    "s3": "give credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE) and check the bucket's name",
    "gs": "give credentials (GOOGLE_APPLICATION_CREDENTIALS) and check the bucket's name",
}
# What the storage libraries raise beside OSError, by protocol: (module, exception class).
_FAILURES = {
    "s3": [("botocore.exceptions", "BotoCoreError"), ("botocore.exceptions", "ClientError")],
    "gs": [
        ("google.auth.exceptions", "GoogleAuthError"),
        ("gcsfs.retry", "HttpError"),
        ("aiohttp", "ClientError"),
    ],
}


def is_remote(url: str) -> bool:
    return protocol(url) != "file"


def protocol(url: str) -> str:
    """The part before ://, with gcs as gs; "file" for plain paths."""
    name, mark, _ = url.partition("://")
    return {"gcs": "gs", "local": "file"}.get(name, name) if mark else "file"


def local_path(url: str) -> Path:
    return Path(url.removeprefix("file://").removeprefix("local://"))


def readable(name: str) -> str:
    """A path as UTF-8 text also where Python decoded it without a locale, so that records agree between machines."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


@contextmanager
def explained(url: str, *, action: str) -> Iterator[None]:
    """Turns what the storage raises into one DataError that names the place and the next step."""
    kind = protocol(url)
    failures: tuple[type[Exception], ...] = (OSError, ImportError, *_loaded_failures(kind))
    try:
        yield
    except failures as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, FileNotFoundError) and kind != "file":
            reason = "there is no such bucket or object"
        advice = _ADVICE.get(kind)
        advice = f"; {advice}." if advice else "."
        raise DataError(f"cannot {action} {readable(url)}: {reason.rstrip('.')}{advice}") from error


def _loaded_failures(kind: str) -> list[type[Exception]]:
    return [getattr(importlib.import_module(module), name) for module, name in _FAILURES.get(kind, [])]


def open_filesystem(url: str) -> tuple[Any, str]:
    """(fsspec file system, path in it). Listings aren't cached: other processes write there too."""
    import fsspec

    options = {"use_listings_cache": False} if is_remote(url) else {}
    with explained(url, action="open"):
        filesystem, path = fsspec.core.url_to_fs(url, **options)
    return filesystem, path


class Folder:
    """Named files under one path or URL. Every method raises DataError with the file's full name."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/") if is_remote(url) else str(local_path(url))
        self.remote = is_remote(url)
        self._filesystem, self._root = open_filesystem(self.url)

    def name(self, file: str) -> str:
        return f"{self.url}/{file}"

    def _path(self, file: str) -> str:
        return f"{self._root}/{file}"

    def size(self, file: str) -> int | None:
        """Bytes, or None when there is no such file."""
        with explained(self.name(file), action="look at"):
            try:
                return int(self._filesystem.info(self._path(file))["size"])
            except (FileNotFoundError, NotADirectoryError):
                return None

    def read(self, file: str) -> bytes | None:
        """The content, or None when there is no such file."""
        with explained(self.name(file), action="read"):
            try:
                content: bytes = self._filesystem.cat_file(self._path(file))
            except (FileNotFoundError, NotADirectoryError):
                return None
            return content

    def names(self, subfolder: str = "") -> set[str]:
        with explained(self.name(subfolder), action="list"):
            try:
                found = self._filesystem.ls(self._path(subfolder).rstrip("/"), detail=False)
            except FileNotFoundError:
                return set()
            return {str(path).rstrip("/").rpartition("/")[2] for path in found}

    def create(self) -> None:
        with explained(self.url, action="create"):
            if not self.remote:
                Path(self.url).mkdir(parents=True, exist_ok=True)
            else:  # there are no folders in object storage: looking finds out whether it may be used at all
                self._filesystem.exists(self._root)

    def write(self, file: str, content: bytes) -> None:
        with explained(self.name(file), action="write"):
            if self.remote:
                self._filesystem.pipe_file(self._path(file), content)
                return
            path = Path(self.url, file)
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}.partial")
            with partial.open("wb") as stream:
                stream.write(content)
                os.fsync(stream.fileno())
            partial.replace(path)

    def put(self, file: str, source: Path) -> None:
        """Moves a local file to `file`; a local source must be on the same disk."""
        with explained(self.name(file), action="write"):
            if self.remote:
                self._filesystem.put_file(str(source), self._path(file))
                source.unlink()
                return
            with source.open("rb") as stream:
                os.fsync(stream.fileno())
            source.replace(Path(self.url, file))

    def get(self, file: str, target: Path) -> None:
        with explained(self.name(file), action="download"):
            self._filesystem.get_file(self._path(file), str(target))

    def remove(self, file: str) -> None:
        with explained(self.name(file), action="remove"):
            self._filesystem.rm_file(self._path(file))
