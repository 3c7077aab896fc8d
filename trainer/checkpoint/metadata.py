"""Opening what torch.distributed.checkpoint wrote, without letting a file run code.

Its `.metadata` is a pickle. It is read through an unpickler that knows the few classes which such a file needs and
refuses any other name; tensors and plain values are read with weights_only.
"""

from __future__ import annotations

import collections
import io
import pathlib
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.serialization import _get_layout

from trainer.errors import CheckpointError

_METADATA_CLASSES = (
    "BytesStorageMetadata",
    "ChunkStorageMetadata",
    "Metadata",
    "MetadataIndex",
    "StorageMeta",
    "TensorProperties",
    "TensorStorageMetadata",
    "_MEM_FORMAT_ENCODING",
)
_ADMITTED: dict[tuple[str, str], Any] = {
    **{("torch.distributed.checkpoint.metadata", name): getattr(metadata, name) for name in _METADATA_CLASSES},
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): filesystem._StorageInfo,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): _get_layout,
    ("collections", "OrderedDict"): collections.OrderedDict,
    # the folder that the checkpoint was written to
    **{("pathlib", name): getattr(pathlib, name) for name in ("Path", "PosixPath", "PurePosixPath")},
}


class _Refused(Exception):
    """The name of something that a plain metadata file has no use for."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = _ADMITTED.get((module, name))
        if found is None and module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if found is None:
            raise _Refused(f"{module}.{name}")
        return found


def open_metadata(data: bytes, *, where: str) -> Metadata:
    """Raises CheckpointError for a file that is damaged or that names anything but torch's own plain classes."""
    try:
        found = _Unpickler(io.BytesIO(data)).load()
    except _Refused as name:
        raise CheckpointError(
            f"{where} is not opened: it asks for {name}, which no checkpoint metadata needs; use one that you trust."
        ) from None
    except (pickle.UnpicklingError, EOFError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where} is damaged ({error}); use another checkpoint.") from None
    if not isinstance(found, Metadata) or not isinstance(found.storage_data, dict):
        raise CheckpointError(f"{where} holds no checkpoint metadata; use another checkpoint.")
    return found


class PlainPlanner(DefaultLoadPlanner):
    """Plain values are unpickled with weights_only, where torch's own planner would unpickle anything."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        plain = io.BytesIO()
        torch.save(torch.load(value, weights_only=True), plain)  # raises for anything but plain types
        plain.seek(0)
        super().load_bytes(read_item, plain)


class Reader(FileSystemReader):
    """Reads the files of `folder` by metadata that is open already."""

    def __init__(self, folder: Path, found: Metadata) -> None:
        super().__init__(folder)
        self._found = found

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        return self._found


def needed_files(found: Metadata, state: dict[str, Any]) -> set[str]:
    """The files that this rank's part of `state` is read from. Communicates with nobody."""
    planner = PlainPlanner()
    planner.set_up_planner(state, found, is_coordinator=False)
    plan = planner.create_local_plan()
    return {found.storage_data[item.storage_index].relative_path for item in plan.items}


def differences(found: Metadata, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """What keeps tensors of these shapes from being read, in words; empty when nothing does."""
    problems = []
    for name, shape in shapes.items():
        saved = found.state_dict_metadata.get(name)
        size = getattr(saved, "size", None)
        if saved is None:
            problems.append(f"{name} is not in the checkpoint")
        elif size is not None and tuple(size) != shape:
            problems.append(f"{name} is {list(size)} in the checkpoint and {list(shape)} here")
    return problems
