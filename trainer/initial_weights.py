"""Weights to start from: a folder of safetensors files with its config.json, read by memory map, tensor by tensor."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.tensor import DTensor, distribute_tensor

from trainer.errors import ConfigError

INDEX = "model.safetensors.index.json"


def initialise(model: nn.Module, folder: Path, *, rename: Callable[[Mapping[str, str]], dict[str, str]]) -> None:
    """Copies the folder's weights into the model, sharded or not; each rank reads only by memory map.

    rename: {name in the folder: same} → {name in the model: name in the folder}. Raises ConfigError unless the two have
    the same tensors in the same shapes.
    """
    where = f"checkpoint.initialise_from {folder}"
    weights: dict[str, Any] = dict(get_model_state_dict(model))
    files = dict(_files(folder))
    theirs = rename({name: name for name in files})
    missing, extra = sorted(weights.keys() - theirs.keys()), sorted(theirs.keys() - weights.keys())
    if missing or extra:
        what = f"lacks {missing[0]}" if missing else f"has {extra[0]}, which the recipe's model has not"
        raise ConfigError(f"{where} {what} ({len(missing) + len(extra)} tensors differ); give the recipe its model.")
    with torch.no_grad():
        for name, weight in weights.items():
            value = _read(files[theirs[name]], theirs[name], where=where)
            if value.shape != weight.shape:
                raise ConfigError(
                    f"{where}: {name} is {list(value.shape)} there and {list(weight.shape)} in the recipe's model; "
                    "give the recipe its model."
                )
            if isinstance(weight, DTensor):
                value = value.to(weight.device, weight.dtype)
                value = distribute_tensor(value, weight.device_mesh, weight.placements, src_data_rank=None)
            weight.copy_(value)


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json. Raises ConfigError."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {folder / 'config.json'}: {error.strerror}.") from None
    except ValueError:
        raise ConfigError(f"{folder / 'config.json'} is not valid JSON.") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{folder / 'config.json'} must hold keys and values.")
    return config


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """(tensor name, file that holds it), from the files themselves: an index could name what isn't there."""
    paths = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if not paths:
        raise ConfigError(f"checkpoint.initialise_from {folder} has no safetensors files; give a model's folder.")
    for path in paths:
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                names = list(file.keys())
        except (OSError, safetensors.SafetensorError) as error:
            raise ConfigError(f"{path} is damaged ({error}); fetch it again.") from None
        yield from ((name, path) for name in names)


def _read(path: Path, name: str, *, where: str) -> Tensor:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            value: Tensor = file.get_tensor(name)
            return value
    except (OSError, safetensors.SafetensorError) as error:
        raise ConfigError(f"{where}: {name} in {path} cannot be read ({error}).") from None
