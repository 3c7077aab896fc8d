"""One optimizer step of a recipe under its strategy, and the bytes that then lie on each rank: rank 0 prints the most.

RANK=… python -m bench.gpu_memory trainer/recipes/llama-1b.yaml strategy=fsdp …
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from trainer import optim
from trainer.config import Recipe, accumulation_steps
from trainer.distributed import processes
from trainer.models.build import build
from trainer.recipe_file import load
from trainer.strategies import make_strategy


def local_bytes(tensors: Iterable[Any]) -> int:
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    return sum(tensor.numel() * tensor.element_size() for tensor in local)


def measured(recipe: Recipe) -> dict[str, int]:
    """By kind, the bytes of the rank that has most: trained parameters, gradients, optimizer state; on a GPU the peak.

    Called by all ranks; makes and ends their process group.
    """
    training = recipe.training
    with processes() as here:
        strategy = make_strategy(here, recipe)
        built = build(recipe, here.device, code=None, deferred=strategy.shards_parameters)
        strategy.prepare(built.model, partial(optim.make_optimizer, recipe.optimizer))
        tokens = np.zeros((training.micro_batch_size, recipe.data.sequence_length), dtype=np.int64)

        def forward() -> torch.Tensor:
            with torch.autocast(here.device.type, dtype=torch.bfloat16, enabled=training.precision == "bf16"):
                return built.loss_sum(strategy.module, (tokens, tokens), here.device)[0]

        sizes: dict[str, float] = {}
        for number in range(2):  # the optimizer has its state from the first step on
            if here.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(here.device)
            micro_batches = accumulation_steps(recipe, here.world)
            for index in range(micro_batches):
                strategy.backward(forward, last=index == micro_batches - 1)
            if number == 1:
                weights = [weight for weight in strategy.module.parameters() if weight.requires_grad]
                sizes = {"parameters": local_bytes(weights), "gradients": local_bytes(one.grad for one in weights)}
            strategy.clip_and_step(training.clip_norm)
        states = [value for state in strategy.optimizer.state.values() for value in state.values()]
        sizes["optimizer"] = local_bytes(states)
        if here.device.type == "cuda":
            sizes["peak"] = torch.cuda.max_memory_allocated(here.device)
        most = here.maximum(*map(float, sizes.values()))
        return dict(zip(sizes, map(int, most), strict=True))


def main(recipe_path: str, overrides: list[str]) -> None:
    sizes = measured(load(Path(recipe_path), overrides))
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(sizes), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
