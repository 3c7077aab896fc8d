"""What a person would write by hand: no checkpoint, no log, no agreement among ranks.

torchrun --nproc-per-node 2 -m bench.bare_loop fsdp trainer/recipes/demo.yaml 60 10
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from bench.trainer_bench import load_recipe, make_model, step_times, training_windows


def main(strategy: str, recipe_path: str, steps: int, warm_up: int) -> None:
    recipe = load_recipe(Path(recipe_path))
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
    model = make_model(recipe)
    if strategy == "ddp":
        model = DistributedDataParallel(model)
    elif strategy == "fsdp":
        mesh = init_device_mesh("cpu", (world,))
        for block in model.get_submodule("blocks").children():
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    training, rates = recipe.training, recipe.optimizer
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=rates.learning_rate,
        betas=rates.betas,
        weight_decay=rates.weight_decay,
        fused=True,
    )
    windows = training_windows(recipe)
    size, micro = training.global_batch_size, training.micro_batch_size
    accumulation = size // (micro * world)
    ends: list[float] = []
    for step in range(steps):
        for index in range(accumulation):
            first = step * size + (index * world + rank) * micro
            inputs, targets = (
                torch.from_numpy(part) for part in windows.read(list(range(first, first + micro)), size=micro)
            )
            last = index == accumulation - 1
            if isinstance(model, FSDPModule):
                model.set_requires_gradient_sync(last)
            elif isinstance(model, DistributedDataParallel):
                model.require_backward_grad_sync = last
            loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=-100)
            (loss / accumulation).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        ends.append(time.time())
    if rank == 0:
        speed = size * recipe.data.sequence_length / statistics.median(step_times(ends, warm_up))
        print(json.dumps({"tokens_per_s": speed, "first_step_at": ends[0]}), flush=True)
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
