"""Files that appear whole or not at all, and a lock between processes."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write `path` by a temporary file in the same folder and a rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def link_atomically(link: Path, target: Path) -> None:
    """Make `link` a symbolic link to `target`, whatever was there before."""
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)


def copy_atomically(target: Path, source: Path) -> None:
    """Make `target` the same file as `source`: a hard link, or a copy where they are on different disks."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    try:
        temporary.hardlink_to(source)
    except OSError:
        shutil.copy2(source, temporary)
    # A rename onto another link of the same file does nothing and leaves the temporary name.
    temporary.replace(target)
    temporary.unlink(missing_ok=True)


@contextmanager
def exclusive(lock_file: Path, *, what: str, report: Callable[[str], object]) -> Iterator[None]:
    """Hold a lock that ends with the process, however it ends; says every 10 s that it waits for another one."""
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    with lock_file.open("a") as stream:
        asked = 0
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if asked % 10 == 0:
                    report(f"{what}: waiting for another process that is at it ({lock_file}), {asked} s")
                asked += 1
                time.sleep(1)
        yield
