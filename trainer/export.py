"""`python -m trainer export CHECKPOINT --to FOLDER`: safetensors and config.json that `transformers` opens.

The other way is the recipe's key checkpoint.initialise_from. Memory: one file of the result at a time.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from trainer import strict_json
from trainer.errors import CheckpointError, ConfigError
from trainer.models import huggingface
from trainer.models.sections import HuggingFaceSection, LlamaSection, ModelSection

if TYPE_CHECKING:
    import torch
    from torch.distributed.checkpoint.metadata import Metadata

    from trainer.checkpoint.manifest import Manifest

DTYPES = ("float32", "bfloat16", "float16")
_LIMIT = 5 * 2**30
_SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    size = export(
        options.checkpoint, options.to, step=options.step, dtype=options.dtype, limit=int(options.shard_gib * 2**30)
    )
    print(f"{options.to}: {size:,} parameters in {options.dtype}, ready for transformers' from_pretrained")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer export",
        description=__doc__,
        epilog="example: python -m trainer export runs/demo --to exported --dtype bf16",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="a checkpoint step-…, or a run or s3:// or gs:// location: its newest"
    )
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="new or empty")
    parser.add_argument("--step", type=int, help="this one instead of the newest")
    parser.add_argument(
        "--dtype", type=lambda text: _SHORT.get(text, text), choices=DTYPES, default="float32", help="bf16 for bfloat16"
    )
    parser.add_argument("--shard-gib", type=float, default=5.0, metavar="GIB", help="start a new file past this size")
    return parser


def export(
    checkpoint: str, to: Path, *, step: int | None = None, dtype: str = "float32", limit: int = 5 * 2**30
) -> int:
    """Returns the number of parameters. Raises CheckpointError or ConfigError, and then leaves no folder `to`."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"--to {to} is there already and not empty; give a new folder.")
    with ExitStack() as stack:
        source = _open(checkpoint, step, stack)
        target = to.with_name(f".{to.name}.partial")
        target.mkdir(parents=True, exist_ok=True)
        for left in target.iterdir():
            left.unlink()
        try:
            size = _write(source, target, dtype=dtype, limit=limit)
            if to.exists():
                to.rmdir()
            target.rename(to)
        except OSError as error:
            raise CheckpointError(f"cannot write {to}: {error.strerror or error}.") from error
    return size


@dataclass(frozen=True)
class _Source:
    """A checkpoint whose files are all in one local folder, and checked."""

    folder: Path
    manifest: Manifest
    metadata: Metadata


def _open(checkpoint: str, step: int | None, stack: ExitStack) -> _Source:
    from trainer.checkpoint import bucket, folder
    from trainer.checkpoint.manifest import METADATA, step_name
    from trainer.checkpoint.metadata import open_metadata
    from trainer.checkpoint.store import is_bucket

    if is_bucket(checkpoint):
        location, found = bucket.find(checkpoint)
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="export-")))
        manifest = bucket.download(location, found if step is None else step, place, wanted=_is_needed)
    else:
        path, found = folder.find(Path(checkpoint))
        place = path / step_name(found if step is None else step)
        manifest = folder.checked_manifest(place, wanted=_is_needed)
    where = f"{checkpoint} (step {manifest['step']})"
    return _Source(place, manifest, open_metadata((place / METADATA).read_bytes(), where=f"{where}: {METADATA}"))


def _is_needed(name: str) -> bool:
    return not name.endswith(".safetensors")  # random states aren't weights


def _write(source: _Source, target: Path, *, dtype: str, limit: int) -> int:
    import safetensors.torch
    import torch
    import torch.distributed.checkpoint as dcp

    from trainer.checkpoint.metadata import PlainPlanner, Reader

    saved_as, config = _names_and_config(source)
    kind: torch.dtype = getattr(torch, dtype)
    groups = list(_groups(source.metadata, saved_as, itemsize=kind.itemsize, limit=limit))
    weight_map: dict[str, str] = {}
    size = 0
    for number, names in enumerate(groups, start=1):
        count = f"-{number:05d}-of-{len(groups):05d}" if len(groups) > 1 else ""
        empty = {name: _empty(source.metadata, name) for name in names}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp.load(
                {"model": empty},
                storage_reader=Reader(source.folder, source.metadata),
                planner=PlainPlanner(),
                no_dist=True,
            )
        weights = {
            saved_as[name]: value.to(kind) if value.is_floating_point() else value for name, value in empty.items()
        }
        size += sum(value.numel() for value in weights.values())
        safetensors.torch.save_file(weights, target / f"model{count}.safetensors", metadata={"format": "pt"})
        weight_map |= dict.fromkeys(weights, f"model{count}.safetensors")
    if len(groups) > 1:
        index = {"metadata": {"total_size": size * kind.itemsize}, "weight_map": weight_map}
        (target / "model.safetensors.index.json").write_text(strict_json.encode(index, indent=1))
    (target / "config.json").write_text(strict_json.encode({**config, "dtype": dtype}, indent=1))
    return size


def _names_and_config(source: _Source) -> tuple[dict[str, str], dict[str, Any]]:
    """{name in the checkpoint: name for transformers}, and config.json."""
    recipe = source.manifest["config"]
    try:
        section: Any = TypeAdapter(ModelSection).validate_python(recipe["model"])
    except (KeyError, ValidationError) as error:
        raise CheckpointError(f"{source.folder}: its recipe is of another version of this trainer ({error}).") from None
    prefix = "model."
    names = [name.removeprefix(prefix) for name in source.metadata.state_dict_metadata if name.startswith(prefix)]
    if isinstance(section, LlamaSection):
        if section.tie_embeddings:
            names = [name for name in names if name != "head.weight"]  # the embedding's
        theirs = huggingface.to_huggingface({name: name for name in names})
        config = huggingface.to_huggingface_config(section, positions=recipe["data"]["sequence_length"])
        return {name: new for new, name in theirs.items()}, config
    if isinstance(section, HuggingFaceSection):
        # in its own writing, which has a form for numbers that JSON has not
        config = strict_json.decode(huggingface.read_config(section).to_json_string(use_diff=False))
        return {name: name for name in names}, config
    raise ConfigError(f"{source.folder} is a model of the user's own file, which transformers has no class for.")


def _groups(metadata: Metadata, names: Mapping[str, str], *, itemsize: int, limit: int) -> Iterator[list[str]]:
    """Names in order, in groups that become files."""
    group: list[str] = []
    size = 0
    for name in names:
        wide = _empty(metadata, name, device="meta").numel() * itemsize
        if group and size + wide > limit:
            yield group
            group, size = [], 0
        group.append(name)
        size += wide
    yield group


def _empty(metadata: Metadata, name: str, device: str = "cpu") -> torch.Tensor:
    import torch
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    saved = metadata.state_dict_metadata[f"model.{name}"]
    if not isinstance(saved, TensorStorageMetadata):
        raise CheckpointError(f"{name} is no tensor in the checkpoint, so it cannot be exported.")
    return torch.empty(saved.size, dtype=saved.properties.dtype, device=device)
