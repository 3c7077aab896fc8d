"""From a batch to a loss: the sum over the targets that count, and their number.

The trainer never averages averages: it adds sums over micro-batches and ranks and divides once by the number of targets
of the whole step. That number is needed before the first backward pass, so it has to follow from the batch alone.

A language model's batch is (inputs, targets, …); its loss is the cross-entropy in nats, IGNORED targets left out.

The user's `loss(model, batch)` gets the wrapped model, to be called as `model(...)`, and the batch on the model's
device, and returns one of
- the mean over the batch's targets, a tensor with one value; the trainer multiplies it by the batch's count;
- (sum, count): the sum over the targets, and their number, which must be the batch's count.
The batch's count is what the user's `count(batch)` returns. Without that function it is the number of integer targets
that aren't IGNORED, where targets are the batch's "targets" or "labels", or its second member; and when there are none
or they aren't integers, the number of rows. A mean over a batch without any target is no number: such data needs
(sum, count).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from trainer.data.batches import IGNORED
from trainer.errors import TrainerError
from trainer.models.user_code import UserCode

LossSum = Callable[[nn.Module, Any, torch.device], tuple[Tensor, int]]
CHUNK = 2**24  # logits that are float32 at one time: 64 MiB


def loss_sum(model: nn.Module, batch: Any, device: torch.device) -> tuple[Tensor, int]:
    """(summed nats, number of targets that count) of a language model, ours or one of `transformers`."""
    return nats(model, batch, device), count(batch)


def nats(model: nn.Module, batch: Any, device: torch.device) -> Tensor:
    inputs, targets, *others = to_device(batch, device)
    output = model(inputs, *others)
    logits = output if isinstance(output, Tensor) else output.logits
    return cross_entropy_sum(logits, targets)


def cross_entropy_sum(logits: Tensor, targets: Tensor, *, chunk: int = CHUNK) -> Tensor:
    """Summed nats. logits: [..., vocabulary] of any float type; targets: [...] int64, IGNORED ones don't count.

    The logits are widened to float32 and normalised a part at a time, and again in the backward pass: a vocabulary of
    128k would otherwise hold 0.5 MiB for each token, twice.
    """
    vocabulary = logits.shape[-1]
    logits, targets = logits.flatten(0, -2), targets.flatten()  # [tokens, vocabulary], [tokens]
    rows = max(1, chunk // vocabulary)
    if len(targets) <= rows:
        return _cross_entropy(logits, targets)
    parts = zip(logits.split(rows), targets.split(rows), strict=True)
    losses = [checkpoint(_cross_entropy, *part, use_reentrant=False, preserve_rng_state=False) for part in parts]
    return torch.stack(losses).sum()


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    wide = torch.promote_types(logits.dtype, torch.float32)
    return functional.cross_entropy(logits.to(wide), targets, ignore_index=IGNORED, reduction="sum")


def count(batch: Any) -> int:
    """Targets that count in a batch whose module has no `count` of its own."""
    targets = _targets(batch)
    if targets is not None and not np.issubdtype(targets.dtype, np.floating):
        return int((targets != IGNORED).sum())
    first = next(_arrays(batch), None)
    if first is None or first.ndim == 0:
        raise TrainerError("a batch holds no array with rows, so its targets can't be counted; write count(batch).")
    return int(first.shape[0])


def user_count(code: UserCode) -> Callable[[Any], int]:
    """The module's own count where it has one."""
    if code.has("count"):
        return lambda batch: _whole(code.call("count", batch), code=code, function="count")

    def counted(batch: Any) -> int:
        try:
            return count(batch)
        except TrainerError as error:
            raise TrainerError(f"{code.path}: {error}") from None

    return counted


def _whole(value: Any, *, code: UserCode, function: str) -> int:
    """A number of targets that the user's function gave, perhaps as a tensor. Raises TrainerError."""
    plain = value.item() if isinstance(value, (Tensor, np.ndarray, np.generic)) and value.ndim == 0 else value
    if not isinstance(plain, (int, float)) or not plain >= 0 or plain % 1:
        raise TrainerError(f"{code.place(function)}: the number of targets is {value!r}, not a whole number from 0.")
    return int(plain)


def user_loss_sum(code: UserCode, *, counted: Callable[[Any], int] | None = None) -> LossSum:
    """The user's loss in the trainer's form; a module without one trains a language model."""
    if not code.has("loss"):
        return loss_sum
    counted, place = counted or user_count(code), code.place("loss")

    def summed(model: nn.Module, batch: Any, device: torch.device) -> tuple[Tensor, int]:
        expected = counted(batch)
        result = code.call("loss", model, to_device(batch, device))
        if _is_scalar(result):
            if expected == 0:
                raise TrainerError(f"{place}: it is a mean, and a batch has no targets; return (sum, count).")
            return connected(result) * expected, expected
        if not (isinstance(result, Sequence) and len(result) == 2 and _is_scalar(result[0])):
            raise TrainerError(f"{place}: it must return a tensor with one value, or (sum, count).")
        number = _whole(result[1], code=code, function="loss")
        if number != expected:
            raise TrainerError(
                f"{place}: it counted {number} targets where the batch has {expected}; "
                "write count(batch), which must say the same."
            )
        return connected(result[0]), expected

    def connected(value: Tensor) -> Tensor:
        if torch.is_grad_enabled() and not value.requires_grad:
            raise TrainerError(f"{place}: the loss doesn't depend on any trained parameter; is it detached?")
        return value.reshape(())

    return summed


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and value.numel() == 1


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with its arrays as tensors on the device; tuples, lists and mappings keep their form."""
    if isinstance(batch, np.ndarray):
        batch = torch.from_numpy(batch)
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return tuple(to_device(value, device) for value in batch)
    return batch


def digest(batch: Any) -> str | None:
    """Equal for equal arrays; None for a batch that holds none."""
    found = [(array.shape, hashlib.sha256(array.tobytes()).hexdigest()) for array in _arrays(batch)]
    return repr(found) if found else None


def _targets(batch: Any) -> Any:
    """The targets as an array, or None."""
    if isinstance(batch, Mapping):
        found = batch.get("targets", batch.get("labels"))
    else:
        found = batch[1] if isinstance(batch, (tuple, list)) and len(batch) > 1 else None
    return next(_arrays(found), None)


def _arrays(batch: Any) -> Any:
    """Every array in the batch, as numpy's."""
    if isinstance(batch, Tensor):
        yield batch.detach().cpu().numpy() if batch.dtype != torch.bfloat16 else batch.detach().float().cpu().numpy()
    elif isinstance(batch, np.ndarray):
        yield batch
    elif isinstance(batch, (Mapping, tuple, list)):
        for value in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _arrays(value)
