"""Sending a file from node to node through the ranks, for nodes that share no storage."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainer.checkpoint.manifest import accepts
from trainer.checkpoint_files import file_entry, sync_folder
from trainer.distributed import Processes
from trainer.errors import CheckpointError

_CHUNK = 16 * 2**20


def send_file(processes: Processes, path: Path, entry: dict[str, Any], *, source: int, receives: bool) -> None:
    """Copies a file from rank `source` to each rank that `receives`, in chunks. All ranks call it.

    Raises CheckpointError on all ranks when what arrived differs from the manifest or cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    sends = processes.rank == source
    what = f"copy {path.name} from rank {source}"

    def chunk(offset: int, data: torch.Tensor | None) -> torch.Tensor:
        size = min(_CHUNK, entry["size"] - offset)
        if sends:
            with path.open("rb") as file:
                file.seek(offset)
                return torch.frombuffer(bytearray(file.read(size)), dtype=torch.uint8)
        if data is not None and receives:
            with temporary.open("ab") as file:
                file.write(data.numpy().tobytes())
        return torch.empty(size, dtype=torch.uint8)

    def finish() -> None:
        if not receives:
            return
        if not accepts(entry, file_entry(temporary)):
            raise OSError(f"{path.name} arrived damaged")
        temporary.rename(path)
        sync_folder(path.parent)

    try:
        for offset in range(0, entry["size"], _CHUNK):
            data = processes.together(lambda at=offset: chunk(at, None), error=CheckpointError, what=what)  # type: ignore[misc]
            dist.broadcast(data, src=source, group=processes.control)
            processes.together(
                lambda at=offset, received=data: None if sends else chunk(at, received),  # type: ignore[misc]
                error=CheckpointError,
                what=what,
            )
        processes.together(finish, error=CheckpointError, what=what)
    except CheckpointError:
        temporary.unlink(missing_ok=True)
        raise
