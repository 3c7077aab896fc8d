"""What of the user's machine goes to the nodes as code: the trainer, and what the user adds; named by its content."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bootstrap.errors import UsageError

PACKAGE = "trainer"


@dataclass(frozen=True)
class SourceTree:
    """Relative POSIX path -> (mode 0o444 or 0o555, content), sorted by path."""

    files: dict[str, tuple[int, bytes]]

    @cached_property
    def digest(self) -> str:
        """16 hex digits over paths, modes and bytes. bootstrap/node_side/unpack.py computes the same."""
        digest = hashlib.sha256()
        for name, (mode, data) in self.files.items():
            digest.update(f"{name}\0{mode:o}\0{len(data)}\0".encode("utf-8", "surrogateescape"))
            digest.update(data)
        return digest.hexdigest()[:16]

    @cached_property
    def archive(self) -> bytes:
        """The files as tar.gz, in the order of the digest."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
            for name, (mode, data) in self.files.items():
                member = tarfile.TarInfo(name)
                member.mode, member.size = mode, len(data)
                archive.addfile(member, io.BytesIO(data))
        return buffer.getvalue()


def collect(root: Path, extra: Sequence[Path] = ()) -> SourceTree:
    """The package `trainer` of the checkout plus `extra`.

    A folder of `extra` stands at the top under its own name; a file at its path in the checkout, or at the top when it
    is from elsewhere. Hidden folders and byte code are left out; links are followed. Raises UsageError for what isn't
    there or for two files that want one place.
    """
    wanted = [(PACKAGE, root / PACKAGE)]
    for path in extra:
        resolved = path.resolve()
        inside = resolved.is_file() and resolved.is_relative_to(root.resolve())
        wanted.append((resolved.relative_to(root.resolve()).as_posix() if inside else resolved.name, resolved))
    files: dict[str, tuple[int, bytes]] = {}
    for top, path in wanted:
        for name, file in _files(top, path):
            entry = (0o555 if os.access(file, os.X_OK) else 0o444, _read(file))
            if files.setdefault(name, entry) != entry:
                raise UsageError(f"{file}: {name} is taken by another file of the code: rename its folder {path}")
    return SourceTree(dict(sorted(files.items())))


def _files(top: str, path: Path) -> Iterator[tuple[str, Path]]:
    if path.is_file():
        yield top, path
        return
    if not path.is_dir():
        raise UsageError(f"{path} isn't there: it is part of the code that goes to the nodes")
    seen: set[Path] = set()
    for folder, folders, names in os.walk(path, followlinks=True):
        here = Path(folder)
        if here.resolve() in seen:
            folders.clear()  # a link that leads back up
            continue
        seen.add(here.resolve())
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        for name in sorted(names):
            file = here / name
            # Broken links (an editor's lock), sockets and pipes aren't code.
            if file.is_file() and not name.endswith(".pyc"):
                yield f"{top}/{file.relative_to(path).as_posix()}", file


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} can't be read ({error.strerror}), and it is part of the code for the nodes") from None
