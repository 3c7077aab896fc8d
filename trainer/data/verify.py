"""`python -m trainer verify`: every byte of a prepared dataset against its manifest, once, instead of at each start."""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trainer.data import manifest
from trainer.data.storage import Folder
from trainer.errors import DataError


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainer verify",
        description=__doc__,
        epilog="example: python -m trainer verify data/corpus",
        allow_abbrev=False,
    )
    parser.add_argument("dataset", metavar="DIR_OR_URL", help="what prepare wrote")
    folder = Folder(parser.parse_args(arguments).dataset)
    made = manifest.load(folder)
    problems = [problem for shard in made.shards if (problem := check(folder, shard, item_size=made.item_size))]
    if problems:
        raise DataError("\n".join(problems))
    print(f"{folder.url}: {len(made.shards)} shards are as the manifest says (digest {made.digest[:12]})")
    return 0


def check(folder: Folder, shard: manifest.Shard, *, item_size: int) -> str | None:
    """What is wrong with a shard's bytes, or None."""
    where, expected = folder.name(shard.file), shard.tokens * item_size
    size = folder.size(shard.file)
    if size is None:
        return f"{where} is missing; bring it back, or prepare the dataset again."
    if size != expected:
        return f"{where} has {size} bytes instead of {expected}; bring it back, or prepare the dataset again."
    with tempfile.TemporaryDirectory() as scratch:
        local = Path(folder.url, shard.file)
        if folder.remote:
            local = Path(scratch, shard.file)
            folder.get(shard.file, local)
        if digest_of(local) == shard.sha256:
            return None
    return f"{where} is damaged: its digest isn't the manifest's; bring it back, or prepare the dataset again."


def digest_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
