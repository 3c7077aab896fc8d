"""Fully sharded data parallel: parameters, gradients and optimizer state divided over ranks; and its hybrid form."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from trainer.distributed import Processes
from trainer.errors import ConfigError
from trainer.strategies.single import refuse_replicate

if TYPE_CHECKING:
    from trainer.strategies import MakeOptimizer


class FSDP:
    """Shards over all ranks."""

    module: nn.Module
    optimizer: Optimizer

    def __init__(self, processes: Processes, *, replicate: int | None, bf16: bool) -> None:
        self._mesh = self._make_mesh(processes, replicate)
        # Gathered parameters in bf16, gradients reduced in float32: sums over ranks keep their digits.
        self._policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if bf16 else None

    def _make_mesh(self, processes: Processes, replicate: int | None) -> DeviceMesh:
        refuse_replicate(replicate)
        return init_device_mesh(processes.device.type, (processes.world,), mesh_dim_names=("shard",))

    def prepare(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        policy = self._policy or MixedPrecisionPolicy()
        blocks = model.get_submodule("blocks")
        for block in blocks.children():
            fully_shard(block, mesh=self._mesh, mp_policy=policy)
        fully_shard(model, mesh=self._mesh, mp_policy=policy)
        self.module = model
        self.optimizer = make_optimizer(model.named_parameters())

    def backward(self, forward: Callable[[], Tensor], *, last: bool) -> Tensor:
        assert isinstance(self.module, FSDPModule)
        self.module.set_requires_gradient_sync(last)
        loss = forward()
        loss.backward()
        return loss.detach()

    def clip_and_step(self, clip_norm: float) -> float:
        total = torch.nn.utils.clip_grad_norm_(self.module.parameters(), clip_norm)
        norm = float(total.full_tensor() if isinstance(total, DTensor) else total)
        if math.isfinite(norm):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm


class HSDP(FSDP):
    """Shards inside each replica, averages between replicas: by default a replica is a node."""

    def _make_mesh(self, processes: Processes, replicate: int | None) -> DeviceMesh:
        world = processes.world
        replicas = replicate or max(1, world // processes.local_world)
        if world % replicas:
            choices = ", ".join(str(n) for n in range(1, world + 1) if world % n == 0)
            raise ConfigError(
                f"strategy.replicate {replicas} does not divide the world size {world}; choose one of {choices}."
            )
        shape = (replicas, world // replicas)
        return init_device_mesh(processes.device.type, shape, mesh_dim_names=("replicate", "shard"))
