"""What a person would write by hand: no checkpoint, no log, no agreement among ranks.

torchrun --nproc-per-node 2 -m bench.bare_loop fsdp trainer/recipes/demo.yaml 60 10 [KEY=VALUE …]
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
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from bench.trainer_bench import load_recipe, make_model, step_times, training_samples


def main(strategy: str, recipe_path: str, steps: int, warm_up: int, overrides: list[str]) -> None:
    recipe = load_recipe(Path(recipe_path), overrides)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    kind, local_rank = "cuda" if torch.cuda.is_available() else "cpu", int(os.environ.get("LOCAL_RANK", "0"))
    device = f"cuda:{local_rank}" if kind == "cuda" else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(local_rank)
    if world > 1 or strategy in ("ddp", "fsdp"):
        alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
        dist.init_process_group("nccl" if kind == "cuda" else "gloo", **alone)
    model, bf16 = make_model(recipe, device), recipe.training.precision == "bf16"
    if strategy == "ddp":
        model = DistributedDataParallel(model, device_ids=[local_rank] if kind == "cuda" else None)
    elif strategy == "fsdp":
        mesh = init_device_mesh(kind, (world,))
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bf16 else MixedPrecisionPolicy()
        for block in model.get_submodule("blocks").children():
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
    training, rates = recipe.training, recipe.optimizer
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=rates.learning_rate,
        betas=rates.betas,
        weight_decay=rates.weight_decay,
        fused=True,
    )
    samples = training_samples(recipe)
    size, micro = training.global_batch_size, training.micro_batch_size
    accumulation = size // (micro * world)
    ends: list[float] = []
    for step in range(steps):
        for index in range(accumulation):
            first = step * size + (index * world + rank) * micro
            inputs, targets = (
                torch.from_numpy(part).to(device)
                for part in samples.read(list(range(first, first + micro)), size=micro)
            )
            last = index == accumulation - 1
            if isinstance(model, FSDPModule):
                model.set_requires_gradient_sync(last)
            elif isinstance(model, DistributedDataParallel):
                model.require_backward_grad_sync = last
            with torch.autocast(kind, dtype=torch.bfloat16, enabled=bf16):
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
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
