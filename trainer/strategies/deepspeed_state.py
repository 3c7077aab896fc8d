"""The state of a DeepSpeed engine under the plain model's names, in DTensors, as every other strategy gives it.

ZeRO cuts flat buffers into equal parts without regard to rows, so that each rank owns an interval of each flattened
weight and of its two moments: a fragment. A DTensor holds whole rows. Between the two lies one all-to-all exchange a
tensor, in either direction: no rank ever holds more than its own share plus one tensor's.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.optim import Optimizer

from trainer.distributed import Processes

_MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's


@dataclass(frozen=True)
class Interval:
    """[start, stop) of a flattened tensor."""

    start: int
    stop: int

    def overlap(self, other: Interval) -> Interval:
        start = max(self.start, other.start)
        return Interval(start, max(start, min(self.stop, other.stop)))

    def within(self, whole: Interval) -> slice:
        return slice(self.start - whole.start, self.stop - whole.start)

    def __len__(self) -> int:
        return self.stop - self.start


def row_intervals(shape: torch.Size, world: int) -> list[Interval]:
    """Rank → what Shard(0) gives it of the flattened tensor: whole rows, the first ranks one chunk each."""
    rows = shape[0]
    width = shape.numel() // rows if rows else 0
    chunk = -(-rows // world)
    return [Interval(min(rank * chunk, rows) * width, min((rank + 1) * chunk, rows) * width) for rank in range(world)]


class ZeroState:
    """Reads and writes the fragments of one engine. `zero` is the engine's optimizer, `inner` the one inside it."""

    def __init__(
        self,
        model: nn.Module,
        inner: Optimizer,
        zero: Any,
        processes: Processes,
        shapes: dict[str, torch.Size],
        groups: list[list[str]],
    ) -> None:
        self._model, self._inner, self._zero, self._processes = model, inner, zero, processes
        self._shapes, self._groups = shapes, groups
        # Any: DeepSpeed hangs its own attributes on a parameter
        self._weights: dict[str, Any] = dict(model.named_parameters())
        self._sharded_weights = any(hasattr(weight, "ds_id") for weight in self._weights.values())
        # Before the first step: DeepSpeed links moments to weights in its first group's step, when the second group's
        # don't exist yet, and never looks again.
        self._make_moments()
        # Checkpoints are made from host memory: a second copy on the GPU could be what doesn't fit.
        self._mesh = DeviceMesh.from_group(processes.control, "cpu")
        mine = {name: self._own(weight) for name, weight in self._weights.items()}
        every = processes.gather(mine)
        self._owners = {name: [part[name] for part in every] for name in mine}

    # ---- reading and writing whole states

    def read(self) -> dict[str, Any]:
        """{"model", "optimizer"}; the tensors are copies."""
        model: dict[str, Any] = {}
        for name, kept in self._kept():
            plain = self._plain_name(kept)
            model[name] = kept.detach() if plain is None else self._gathered(plain)
        moments: dict[str, Any] = {}
        for name in self._trained():
            moments[name] = {"step": self._step()} | {key: self._gathered(name, key) for key in _MOMENTS}
        return {"model": model, "optimizer": {"state": moments, "param_groups": self._param_groups()}}

    @torch.no_grad()
    def write(self, state: dict[str, Any]) -> None:
        """Takes over what read() gave, here or in another world or strategy."""
        for name, kept in self._kept():
            plain = self._plain_name(kept)
            if plain is None:
                kept.detach().copy_(state["model"][name])
            elif plain == name:
                self._scatter(name, state["model"][name])
        loaded = state["optimizer"]["state"]
        for name in self._trained():
            for key in _MOMENTS:
                self._scatter(name, loaded[name][key], key)
        step = max((float(loaded[name]["step"]) for name in self._trained()), default=0.0)
        for flat in self._flat_weights():
            self._inner.state[flat]["step"].fill_(step)
        self._refresh_working_copies()

    def fragments(self) -> list[Tensor]:
        """This rank's part of each trained weight, in full precision."""
        return [fragment for name in self._trained() if (fragment := self._fragment(name)) is not None]

    # ---- what the engine holds

    def _kept(self) -> Iterator[tuple[str, Tensor]]:
        """Frozen parameters are the base model's, which the recipe names: they are neither saved nor loaded."""
        for name, value in self._model.state_dict(keep_vars=True).items():
            if value.requires_grad or not isinstance(value, nn.Parameter):
                yield name, value

    def _trained(self) -> list[str]:
        return [name for group in self._groups for name in group]

    def _plain_name(self, kept: Tensor) -> str | None:
        """The name under which a parameter's fragments are known (tied ones have several); None: not in fragments."""
        if not isinstance(kept, nn.Parameter):
            return None
        plain = next(known for known, weight in self._weights.items() if weight is kept)
        return plain if any(self._owners[plain]) else None

    def _own(self, weight: Any) -> Interval:
        if hasattr(weight, "ds_id"):  # stage 3: equal parts of each parameter, the last one padded
            part, total = int(weight.ds_tensor.ds_numel), int(weight.ds_numel)
            return Interval(min(self._processes.rank * part, total), min((self._processes.rank + 1) * part, total))
        mapping = getattr(weight, "_hp_mapping", None)
        if mapping is None:  # frozen, or wholly in other ranks' parts
            return Interval(0, 0)
        address = mapping.lp_fragment_address
        return Interval(address.start, address.start + address.numel)

    def _fragment(self, name: str, key: str | None = None) -> Tensor | None:
        """This rank's fragment of the weight, or of its moment `key`; a view wherever it isn't on a disk."""
        weight, own = self._weights[name], self._owners[name][self._processes.rank]
        if not len(own):
            return None
        if not hasattr(weight, "ds_id"):
            fragment: Tensor = weight._hp_mapping.get_hp_fragment(key)
            return fragment
        if not weight.requires_grad:
            frozen: Tensor = weight.ds_tensor
            return frozen[: len(own)]
        tools = importlib.import_module("deepspeed.utils")
        part: Tensor = (
            tools.safe_get_local_fp32_param(weight)
            if key is None
            else tools.safe_get_local_optimizer_state(weight, key)
        )
        return part[: len(own)]

    def _set_fragment(self, name: str, value: Tensor, key: str | None) -> None:
        weight, fragment = self._weights[name], self._fragment(name, key)
        if fragment is None:
            return
        if not (hasattr(weight, "ds_id") and weight.requires_grad):
            fragment.detach().copy_(value)
            return
        # offloaded, the fragment that we were given is a copy: it goes back through DeepSpeed
        tools = importlib.import_module("deepspeed.utils")
        padded = torch.zeros(weight.ds_tensor.ds_numel, dtype=fragment.dtype, device=fragment.device)
        padded[: len(value)] = value
        if key is None:
            tools.safe_set_local_fp32_param(weight, padded)
        else:
            tools.safe_set_local_optimizer_state(weight, padded, key)

    def _flat_weights(self) -> Iterator[Tensor]:
        if self._sharded_weights:
            yield from self._zero.fp32_partitioned_groups_flat
        else:
            for group in self._inner.param_groups:
                yield from group["params"]

    def _make_moments(self) -> None:
        """AdamW makes its state in the first step; before that, we make it as AdamW would."""
        for index, flat in enumerate(self._flat_weights()):
            if self._inner.state[flat]:
                continue
            on_disk = self._sharded_weights and self._zero._swappable_optimizer_subgroup(index)
            if on_disk:
                self._zero._optimizer_states_and_gradient_swap_in(index)
            self._inner.state[flat] = {
                "step": torch.zeros((), dtype=torch.float32, device=flat.device),
                **{key: torch.zeros_like(flat) for key in _MOMENTS},
            }
            if on_disk:
                self._zero._optimizer_states_and_gradient_swap_out(index)
        link = getattr(self._zero, "_lazy_init_hp_params_optimizer_state", None)
        if link is not None:
            link()

    def _step(self) -> Tensor:
        flat = next(self._flat_weights())
        step: Tensor = self._inner.state[flat]["step"].clone().cpu()
        return step

    def _param_groups(self) -> list[dict[str, Any]]:
        return [
            {**{key: value for key, value in group.items() if key != "params"}, "params": names}
            for group, names in zip(self._inner.param_groups, self._groups, strict=True)
        ]

    def _refresh_working_copies(self) -> None:
        """Makes the weights that the forward pass uses equal to the full-precision ones."""
        if not self._sharded_weights:
            self._zero.update_lp_params()
            return
        self._zero._partition_all_parameters()
        for index in range(len(self._zero.fp16_groups)):
            self._zero._reassign_or_swap_out_partitioned_parameters(index)
        self._zero._post_step(set())  # small parameters stay gathered: they are gathered again

    # ---- fragments to rows and back

    def _gathered(self, name: str, key: str | None = None) -> DTensor | Tensor:
        """The weight or its moment as a DTensor of whole rows in host memory."""
        shape = self._shapes[name]
        fragment = self._fragment(name, key)
        local = fragment.detach().float().cpu() if fragment is not None else torch.zeros(0)
        if not shape:  # a scalar has no rows: all get it
            parts = self._processes.gather(local)
            return torch.cat(parts).reshape(shape)
        rows = row_intervals(shape, self._processes.world)
        flat = self._exchange(local, have=self._owners[name], want=rows)
        return DTensor.from_local(
            flat.view(-1, *shape[1:]),
            self._mesh,
            [Shard(0)],
            run_check=False,
            shape=shape,
            stride=torch.empty(shape, device="meta").stride(),
        )

    def _scatter(self, name: str, value: Tensor, key: str | None = None) -> None:
        shape, rank = self._shapes[name], self._processes.rank
        own = self._owners[name][rank]
        if not isinstance(value, DTensor):
            self._set_fragment(name, value.flatten()[own.start : own.stop], key)
            return
        rows = row_intervals(shape, self._processes.world)
        flat = self._exchange(value.to_local().float().flatten(), have=rows, want=self._owners[name])
        self._set_fragment(name, flat, key)

    def _exchange(self, local: Tensor, *, have: list[Interval], want: list[Interval]) -> Tensor:
        """From a cut of a flat tensor over ranks to another one; both may have gaps where nothing is wanted."""
        rank, world = self._processes.rank, self._processes.world
        sends = [local[have[rank].overlap(want[to]).within(have[rank])] for to in range(world)]
        sizes = [len(have[source].overlap(want[rank])) for source in range(world)]
        received = torch.empty(sum(sizes), dtype=local.dtype)
        dist.all_to_all_single(
            received, torch.cat(sends), sizes, [part.numel() for part in sends], group=self._processes.control
        )
        return received
