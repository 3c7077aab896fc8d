"""Documents as one stream of byte tokens, split by file name into training and held-out parts. Imports no torch."""

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.config import DataSection
from trainer.errors import DataError

SEPARATOR = 256  # the token after each document; 0–255 are bytes
_SKIPPED = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})


@dataclass(frozen=True)
class Corpus:
    """training, held_out: [tokens] uint16; digest: sha256 of both, equal on every node or the run must not start."""

    training: NDArray[np.uint16]
    held_out: NDArray[np.uint16]
    digest: str


def load(config: DataSection) -> Corpus:
    """Reads the documents. Raises DataError when there are too few for both parts."""
    parts: dict[bool, list[bytes]] = {False: [], True: []}
    budget = int(config.limit_mib * 2**20)
    for root, path in _files(config):
        try:
            content = path.read_bytes()[:budget]
        except OSError as error:
            raise DataError(f"data.path: cannot read {path}: {error.strerror}.") from None
        if content:
            parts[_held_out(path.relative_to(root).as_posix(), config.held_out_share)].append(content)
        budget -= len(content)
        if budget <= 0:
            break
    training, held_out = _tokens(parts[False]), _tokens(parts[True])
    for name, tokens in (("training", training), ("held-out", held_out)):
        if len(tokens) <= config.sequence_length:
            raise DataError(
                f"data: the {name} part needs at least {config.sequence_length + 1} tokens for one sequence, has "
                f"{len(tokens)}; give more files, or change data.sequence_length, held_out_share or limit_mib."
            )
    digest = hashlib.sha256(training.tobytes() + b"|" + held_out.tobytes()).hexdigest()
    return Corpus(training=training, held_out=held_out, digest=digest)


def _files(config: DataSection) -> list[tuple[Path, Path]]:
    """(root, file) pairs, sorted by relative path, so that every node reads the same order."""
    if config.source == "stdlib":
        root = Path(sysconfig.get_path("stdlib"))
        found = [path for path in root.rglob("*.py") if not _SKIPPED & set(path.relative_to(root).parts)]
    else:
        root = Path(config.path or "")
        if root.is_file():
            root, found = root.parent, [root]
        else:
            found = [path for path in root.rglob("*") if path.is_file()]
    if not found:
        raise DataError(f"data: there are no files to read under {root}.")
    return [(root, path) for path in sorted(found, key=lambda path: path.relative_to(root).as_posix())]


def _held_out(name: str, share: float) -> bool:
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()[:8], "big") < share * 2**64


def _tokens(documents: list[bytes]) -> NDArray[np.uint16]:
    if not documents:
        return np.zeros(0, dtype=np.uint16)
    separator = np.array([SEPARATOR], dtype=np.uint16)
    pieces = [piece for text in documents for piece in (np.frombuffer(text, dtype=np.uint8), separator)]
    return np.concatenate(pieces).astype(np.uint16)
