"""Weights to start from: a folder of safetensors files with its config.json, read by memory map, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from trainer import strict_json
from trainer.errors import ConfigError
from trainer.models import huggingface
from trainer.models.sections import LlamaSection

_KEY = "checkpoint.initialise_from"


def initialise(model: nn.Module, section: Any, folder: Path) -> None:
    """Copies the folder's weights into the built-in Llama, sharded or not; each rank reads only what it maps.

    Raises ConfigError unless the folder describes the recipe's model and has all its tensors, in the same shapes.
    """
    if not isinstance(section, LlamaSection):
        raise ConfigError(f"{_KEY} is for the built-in Llama; a Hugging Face model takes its weights by itself.")
    _compare(section, huggingface.from_huggingface_config(_read_config(folder)), folder)
    files = dict(_files(folder))
    theirs = huggingface.from_huggingface({name: name for name in files}, section)
    weights = dict(model.named_parameters())  # each once: a tied head is its embedding
    missing, extra = sorted(weights.keys() - theirs.keys()), sorted(theirs.keys() - weights.keys())
    if missing or extra:
        what = f"lacks {missing[0]}" if missing else f"has {extra[0]}, which the recipe's model has not"
        raise ConfigError(f"{_KEY} {folder} {what} ({len(missing) + len(extra)} tensors differ); use a whole model.")
    with torch.no_grad():
        for name, weight in weights.items():
            value = _read(files[theirs[name]], theirs[name])
            if value.shape != weight.shape:
                raise ConfigError(f"{_KEY} {folder}: {name} is {list(value.shape)}, not {list(weight.shape)}.")
            value = value.to(weight.device, weight.dtype)
            if isinstance(weight, DTensor):  # every rank takes its own part of what it read: nothing is sent
                value = distribute_tensor(value, weight.device_mesh, weight.placements, src_data_rank=None)
            weight.copy_(value)


def _compare(recipe: LlamaSection, folder: LlamaSection, path: Path) -> None:
    ours, theirs = recipe.model_dump(), folder.model_dump()
    ours["hidden"], theirs["hidden"] = recipe.feed_forward, folder.feed_forward
    for key, value in theirs.items():
        if ours[key] != value:
            raise ConfigError(f"{_KEY} {path} has model.{key} {value}, and the recipe {ours[key]}; write what it has.")


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = strict_json.decode((folder / "config.json").read_bytes())
    except OSError as error:
        raise ConfigError(f"{_KEY}: cannot read {folder / 'config.json'}: {error.strerror}.") from None
    except ValueError as error:
        raise ConfigError(f"{_KEY}: {folder / 'config.json'} is not valid JSON ({error}); fetch it again.") from None
    if not isinstance(config, dict) or "hidden_size" not in config or "num_attention_heads" not in config:
        raise ConfigError(f"{_KEY}: {folder / 'config.json'} describes no Llama.")
    return config


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """(tensor name, file that holds it), from the files themselves: an index could name what isn't there."""
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise ConfigError(f"{_KEY} {folder} has no safetensors files; give a model's folder.")
    for path in paths:
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                names = list(file.keys())
        except (OSError, safetensors.SafetensorError) as error:
            raise ConfigError(f"{_KEY}: {path} is damaged ({error}); fetch it again.") from None
        yield from ((name, path) for name in names)


def _read(path: Path, name: str) -> Tensor:
    with safetensors.safe_open(path, framework="pt") as file:
        value: Tensor = file.get_tensor(name)
        return value
