"""From the recipe's `model` section to a model, and the loss that goes with it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trainer import loss
from trainer.errors import ConfigError
from trainer.models import huggingface
from trainer.models.blocks import block_names, checkpoint_activations
from trainer.models.compiling import compile_forward
from trainer.models.llama import Llama
from trainer.models.sections import HuggingFaceSection, LlamaSection, ModuleSection
from trainer.models.user_code import UserCode

if TYPE_CHECKING:
    from trainer.config import Recipe
    from trainer.distributed import Processes


@dataclass(frozen=True)
class Built:
    """`code` is the user's file, if the model came from one."""

    model: nn.Module
    loss_sum: loss.LossSum
    code: UserCode | None = None


def load_code(recipe: Recipe) -> UserCode | None:
    """The user's file, if the recipe names one. Raises ConfigError when it can't be imported."""
    return UserCode(Path(recipe.model.module)) if isinstance(recipe.model, ModuleSection) else None


def build(recipe: Recipe, device: torch.device, *, code: UserCode | None, deferred: bool) -> Built:
    """The model on `device`, the same weights on every rank.

    Deferred, the built-in Llama comes on the meta device, without memory, for a strategy that gives each rank its part
    and fills that by `initialise`; other models can't be filled piece by piece and are always made whole.
    """
    section = recipe.model
    torch.manual_seed(recipe.seed)
    # bf16 is the affair of the copies that a strategy or autocast makes
    dtype = torch.float64 if recipe.training.precision == "float64" else torch.float32
    if isinstance(section, LlamaSection):
        with torch.device("meta") if deferred else device:
            model: nn.Module = Llama(section).to(dtype)
    elif isinstance(section, HuggingFaceSection):
        model = huggingface.build(section).to(device, dtype)
    else:
        assert code is not None
        model = code.build_model(recipe).to(device)
        model = model.double() if dtype is torch.float64 else model
    names = block_names(model)
    if recipe.training.compile and deferred:
        # A block's parameters are there while its own forward pass runs, and no longer.
        compile_forward(model, names, device)
    if recipe.training.activation_checkpointing:
        if not names:
            raise ConfigError("training.activation_checkpointing: the model has no repeated layers; remove the key.")
        checkpoint_activations(model, names)
    if recipe.training.compile and not deferred:
        compile_forward(model, [], device)
    return Built(model, loss.user_loss_sum(code) if code else loss.loss_sum, code)


def build_shapes(recipe: Recipe) -> Built:
    """The model on the meta device: every name, shape and type, and no memory; activations are not checkpointed."""
    section, code = recipe.model, load_code(recipe)
    with torch.device("meta"):
        if isinstance(section, LlamaSection):
            model: nn.Module = Llama(section)
        elif isinstance(section, HuggingFaceSection):
            model = huggingface.build(section.model_copy(update={"weights": "random"}))
        else:
            assert code is not None
            model = code.build_model(recipe)
    return Built(model, loss.user_loss_sum(code) if code else loss.loss_sum, code)


def vocabulary(section: LlamaSection | HuggingFaceSection | ModuleSection) -> int | None:
    """The ids that the recipe itself gives the model; None when only the model knows."""
    return section.vocabulary if isinstance(section, LlamaSection) else None


def check_fits(model: nn.Module, *, ids: int, length: int) -> None:
    """Refuses data with ids from 0 to `ids` - 1 in sequences of `length` that the model has no place for."""
    known, positions = limits(model)
    if known is not None and ids > known:
        raise ConfigError(
            f"model: its vocabulary of {known} is smaller than the {ids} ids of the data's tokenizer; "
            "give the model a larger vocabulary, or prepare the data with its own tokenizer."
        )
    if positions is not None and length > positions:
        raise ConfigError(
            f"data.sequence_length {length} is longer than the {positions} positions of the model; shorten it."
        )


def check_same(model: nn.Module, here: Processes) -> None:
    """Refuses a model that has other parameters on some rank: ranks would wait for each other, or mix them up."""
    shapes = [(name, tuple(weight.shape), weight.requires_grad) for name, weight in model.named_parameters()]
    found = here.gather(hashlib.sha256(repr(shapes).encode()).hexdigest())
    other = next((rank for rank, digest in enumerate(found) if digest != found[0]), None)
    if other is not None:
        raise ConfigError(
            f"model: rank {other} built other parameters than rank 0 (names, shapes or what is trained); "
            "make the model from the recipe alone, never from a rank or a node's files."
        )


def limits(model: nn.Module) -> tuple[int | None, int | None]:
    """(vocabulary, longest sequence), each None where the model doesn't say."""
    config: Any = getattr(model, "config", None)
    if isinstance(config, LlamaSection):
        return config.vocabulary, None  # rotary positions have no end
    if hasattr(config, "get_text_config"):
        text = config.get_text_config()
        return getattr(text, "vocab_size", None), getattr(text, "max_position_embeddings", None)
    return None, None
