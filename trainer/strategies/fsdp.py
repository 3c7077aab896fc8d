"""Fully sharded data parallel: parameters, gradients and optimizer state divided over ranks; and its hybrid form."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard

from trainer.distributed import Processes
from trainer.errors import ConfigError
from trainer.strategies.blocks import blocks, recompute_activations
from trainer.strategies.torch_strategy import TorchStrategy

if TYPE_CHECKING:
    from trainer.config import Recipe, StrategySection
    from trainer.strategies import MakeOptimizer


class FSDP(TorchStrategy):
    """Shards over all ranks."""

    module: FSDPModule  # type: ignore[assignment]  # torch makes a class of the model's own and this one

    def __init__(self, processes: Processes, recipe: Recipe) -> None:
        config = recipe.strategy
        self._mesh = self._make_mesh(processes, config)
        # Gathered parameters in bf16, gradients reduced in float32: sums over ranks keep their digits.
        bf16 = recipe.training.precision == "bf16"
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if bf16 else None
        self._how: dict[str, Any] = {"mesh": self._mesh, "mp_policy": policy or MixedPrecisionPolicy()}
        if config.cpu_offload:
            # pinned memory is a matter of the GPU's driver
            self._how["offload_policy"] = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
        self._reshard = config.reshard_after_forward is not False
        self._recompute = config.activation_checkpointing

    def _make_mesh(self, processes: Processes, config: StrategySection) -> DeviceMesh:
        del config
        return init_device_mesh(processes.device.type, (processes.world,), mesh_dim_names=("shard",))

    def prepare(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        if self._recompute:  # before sharding, so that a block's parameters are gathered again for its second forward
            recompute_activations(model)
        for block in blocks(model):
            fully_shard(block, reshard_after_forward=self._reshard, **self._how)
        # The root's own parameters (embedding, head) are needed again at once: torch's default keeps them gathered.
        fully_shard(model, **self._how)
        # The optimizer comes after sharding: made before, it would hold parameters that no longer are the model's.
        self._adopt(model, make_optimizer(model.named_parameters()))

    def backward(self, forward: Callable[[], Tensor], *, last: bool) -> Tensor:
        self.module.set_requires_gradient_sync(last)
        loss = forward()
        loss.backward()
        return loss.detach()


class HSDP(FSDP):
    """Shards inside each replica, averages between replicas: by default a replica is a node."""

    def _make_mesh(self, processes: Processes, config: StrategySection) -> DeviceMesh:
        world = processes.world
        replicas = config.replicate or max(1, world // processes.local_world)
        if world % replicas:
            choices = ", ".join(str(n) for n in range(1, world + 1) if world % n == 0)
            raise ConfigError(
                f"strategy.replicate {replicas} does not divide the world size {world}; choose one of {choices}."
            )
        shape = (replicas, world // replicas)
        return init_device_mesh(processes.device.type, shape, mesh_dim_names=("replicate", "shard"))
