"""A folder with checkpoints of another run, to begin with: it is read and never written to, so it may be read-only."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from trainer.checkpoint import peers
from trainer.checkpoint.folder import Folder
from trainer.checkpoint.manifest import Manifest, step_name
from trainer.distributed import Processes
from trainer.errors import CheckpointError


class BorrowedFolder(Folder):
    """Each node is taken to have its own folder of this name: whether it is one, can't be found out without writing."""

    def __init__(self, path: Path, *, scratch: Path, processes: Processes) -> None:
        """scratch: a local folder for what this node lacks."""
        first = processes.rank - processes.local_rank
        super().__init__(path, processes, mates=list(range(first, first + processes.local_world)))
        self._scratch = scratch / f"node-{first}"

    def look(self) -> tuple[dict[int, Manifest], list[str], list[str]]:
        return super().look() if self.path.is_dir() else ({}, [], [])

    def bring(self, step: int, manifest: Manifest, names: Iterable[str]) -> Path:
        """What this node lacks is sent to it by others; what it has, is linked beside that."""
        here, folder, scratch = self._processes, self.path / step_name(step), self._scratch / step_name(step)
        needs = self._needs(names)
        missing = {name: owners - set(self._holders[name]) for name, owners in needs.items()}
        if not any(missing.values()):
            return folder

        def link() -> None:
            scratch.mkdir(parents=True, exist_ok=True)
            for name, owners in needs.items():
                if self.owner and here.rank in owners - missing[name]:
                    (scratch / name).unlink(missing_ok=True)
                    (scratch / name).symlink_to((folder / name).resolve())

        here.together(link, error=CheckpointError, what=f"use the folder {scratch}")
        for name in sorted(name for name, owners in missing.items() if owners):
            source, receives = min(self._holders[name]), here.rank in missing[name]
            path = scratch / name if receives else folder / name
            peers.send_file(here, path, manifest["files"][name], source=source, receives=receives)
        here.barrier()  # the mates of an owner read what it was sent
        return scratch

    def forget(self, step: int) -> None:
        del step
        self._processes.barrier()  # all have read
        if self.owner:
            shutil.rmtree(self._scratch, ignore_errors=True)
