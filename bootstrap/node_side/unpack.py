"""Unpacks a code tree beside its place, verifies its digest, and moves it there.

python3 -c THIS FOLDER DIGEST   <  tar.gz

The digest is computed as bootstrap/code_tree.py does. Files become read-only; folders don't, so that anybody who owns
them can remove them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
import tarfile
from pathlib import Path

DISK_FULL = 28


def unpack(part: Path) -> str:
    """Writes the archive on stdin below `part` and returns its digest."""
    digest = hashlib.sha256()
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|gz") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is None or ".." in member.name.split("/") or member.name.startswith("/"):
                sys.exit(f"unexpected member {member.name!r}")
            data = content.read()
            digest.update(f"{member.name}\0{member.mode:o}\0{len(data)}\0".encode("utf-8", "surrogateescape"))
            digest.update(data)
            path = part / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(member.mode)
    return digest.hexdigest()


def main(folder: Path, expected: str) -> None:
    part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    try:
        part.mkdir(parents=True)
        if unpack(part)[: len(expected)] != expected:
            sys.exit("the code that arrived isn't the code that was sent")
        try:
            part.rename(folder)
        except OSError as error:
            # Somebody else was faster with the same digest, thus with the same content.
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
    except (EOFError, tarfile.TarError) as error:
        sys.exit(f"the copy was cut: {error}")
    except OSError as error:
        sys.stderr.write(f"{error.strerror or error}")
        sys.exit(DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else 1)
    finally:
        shutil.rmtree(part, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
