"""Fully sharded data parallel: parameters, gradients and optimizer state divided over ranks; and its hybrid form."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from trainer.distributed import Processes
from trainer.models.blocks import block_names
from trainer.strategies import worlds
from trainer.strategies.torch_strategy import TorchStrategy

if TYPE_CHECKING:
    from trainer.config import Recipe, StrategySection
    from trainer.strategies import MakeOptimizer


class FSDP(TorchStrategy):
    """Shards over all ranks."""

    module: FSDPModule  # type: ignore[assignment]  # torch makes a class of the model's own and this one
    shards_parameters = True

    def __init__(self, processes: Processes, recipe: Recipe) -> None:
        config = recipe.strategy
        self._device = processes.device
        self._mesh = self._make_mesh(processes, config)
        # Gathered parameters in bf16, gradients reduced in float32: sums over ranks keep their digits.
        bf16 = recipe.training.precision == "bf16"
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if bf16 else None
        self._how: dict[str, Any] = {"mesh": self._mesh, "mp_policy": policy or MixedPrecisionPolicy()}
        if config.cpu_offload:
            # pinned memory is a matter of the GPU's driver
            self._how["offload_policy"] = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
        self._reshard = config.reshard_after_forward is not False

    def _make_mesh(self, processes: Processes, config: StrategySection) -> DeviceMesh:
        del config
        return init_device_mesh(processes.device.type, (processes.world,), mesh_dim_names=("shard",))

    def prepare(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        for name in block_names(model):
            fully_shard(model.get_submodule(name), reshard_after_forward=self._reshard, **self._how)
        # The root's own parameters (embedding, head) are needed again at once: torch's default keeps them gathered.
        fully_shard(model, **self._how)
        fill(model, self._device)
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
        # gathered, because a mesh of another shape on some rank would be waited for for ever
        replicas = config.replicate or worlds.replicas_of_nodes(set(processes.gather(processes.local_world)), world)
        shape = (replicas, world // replicas)
        return init_device_mesh(processes.device.type, shape, mesh_dim_names=("replicate", "shard"))


def fill(model: nn.Module, device: torch.device) -> None:
    """Gives a sharded model from the meta device its memory and first values; leaves any other as it is.

    Each rank draws every parameter whole, one at a time, and keeps its own part: the same values as without sharding.
    """
    if not any(weight.is_meta for weight in model.parameters()):
        return
    model.to_empty(device=device)
    initialise: Any = model.initialise
    for name, weight in model.named_parameters():
        assert isinstance(weight, DTensor)
        whole = torch.empty(weight.shape, dtype=weight.dtype, device=device)
        initialise(name, whole)
        part = distribute_tensor(whole, weight.device_mesh, weight.placements, src_data_rank=None)
        with torch.no_grad():
            weight.to_local().copy_(part.to_local())
