"""What a model's forward pass keeps for the backward pass, found by running it on tensors without memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from trainer.errors import TrainerError
from trainer.loss import nats, user_count, user_loss_sum
from trainer.models.blocks import block_names, checkpoint_activations
from trainer.models.build import Built, build_shapes

if TYPE_CHECKING:
    from trainer.config import Recipe


@dataclass(frozen=True)
class Activations:
    """Bytes of one micro-batch. weights: copies of parameters in the training precision, which autocast keeps."""

    kept: int
    largest: int
    weights: int


def measure(recipe: Recipe, *, cast: bool) -> Activations:
    """Runs the recipe's forward pass and loss on fake tensors, and adds up the storages that autograd saves.

    cast: the parameters themselves are in the training precision (as when a strategy gathers them so), instead of
    being copied to it by autocast. With activation checkpointing the last block isn't: the backward pass holds
    the activations of the one block that it recomputes. The count is for PyTorch's CPU kernels, whose attention
    saves what the GPU's flash attention saves. Raises TrainerError when the model can't be run so.
    """
    built = build_shapes(recipe)
    if recipe.training.activation_checkpointing:
        checkpoint_activations(built.model, block_names(built.model)[:-1])
    low = recipe.training.precision == "bf16"
    batch, model, code = _batch(recipe, built), built.model, built.code
    number = user_count(code)(batch) if code is not None else 0  # now: tensors without memory can't be counted
    if cast and low:
        model = model.to(torch.bfloat16)
    kept: dict[int, int] = {}
    weights: dict[int, int] = {}
    held: list[Tensor] = []  # a storage that were freed could give its identity to another

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in parameters:
            held.append(tensor)
            (weights if _copy_of_a_parameter(tensor) else kept)[key] = storage.nbytes()
        return tensor

    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            model.to_empty(device="cpu")
            parameters = {weight.untyped_storage()._cdata for weight in model.parameters()}
            hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
            with hooks, torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
                if code is not None and code.has("loss"):
                    user_loss_sum(code, counted=lambda _: number)(model, batch, torch.device("cpu"))
                else:
                    nats(model, batch, torch.device("cpu"))
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        raise TrainerError(" ".join(str(error).split())[:200]) from error
    return Activations(sum(kept.values()), max(kept.values(), default=0), sum(weights.values()))


def _batch(recipe: Recipe, built: Built) -> Any:
    """A micro-batch of the recipe's shape."""
    if recipe.data.source == "module" and built.code is not None:
        batches, _ = built.code.build_data(recipe, 0, 1, start=0)
        with built.code.errors_in("build_data"):
            return next(iter(batches))
    tokens = np.zeros((recipe.training.micro_batch_size, recipe.data.sequence_length), dtype=np.int64)
    return tokens, tokens


def _copy_of_a_parameter(tensor: Tensor) -> bool:
    """Whether it is a parameter in another type, or a view of that: what autocast makes for each layer."""
    node = tensor.grad_fn
    for _ in range(4):
        if node is None:
            return False
        name = node.name()
        if name.startswith("torch::autograd::AccumulateGrad"):
            return True
        if not name.startswith(("ToCopyBackward", "TBackward", "ViewBackward", "TransposeBackward")):
            return False
        node = node.next_functions[0][0]
    return False
