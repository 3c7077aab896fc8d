"""The peer: Hugging Face's Trainer on the same model, data, batch, optimizer and threads. Prints tokens/s and start-up.

torchrun --nproc-per-node 2 -m bench.hf_trainer trainer/recipes/demo.yaml 60 10

DDP under torchrun, one process without. Its FSDP can't be measured on CPU: accelerate 1.15 takes fsdp settings only for
accelerators, and trains under DDP instead.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def main(recipe_path: str, steps: int, warm_up: int) -> None:
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.utils.data import Dataset, SequentialSampler
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from bench.trainer_bench import load_recipe, make_model, step_times, training_samples

    recipe = load_recipe(Path(recipe_path))
    samples = training_samples(recipe)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    size, micro = recipe.training.global_batch_size, recipe.training.micro_batch_size

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = make_model(recipe)

        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = self.model(input_ids)
            return {"loss": functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)}

    class Rows(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return steps * size

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            inputs, targets = samples.read([index], size=1)
            return {"input_ids": torch.from_numpy(inputs[0]), "labels": torch.from_numpy(targets[0])}

    class InOrder(Trainer):
        def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
            del args, kwargs
            return SequentialSampler(self.train_dataset)

    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            del args, kwargs
            ends.append(time.time())

    torch.manual_seed(recipe.seed)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            max_steps=steps,
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=size // (micro * world),
            learning_rate=recipe.optimizer.learning_rate,
            weight_decay=recipe.optimizer.weight_decay,
            adam_beta1=recipe.optimizer.betas[0],
            adam_beta2=recipe.optimizer.betas[1],
            optim="adamw_torch_fused",
            lr_scheduler_type="cosine",
            max_grad_norm=recipe.training.clip_norm,
            logging_steps=recipe.training.log_every,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_num_workers=0,
            dataloader_pin_memory=False,
            ddp_find_unused_parameters=False,
            seed=recipe.seed,
        )
        InOrder(model=WithLoss(), args=arguments, train_dataset=Rows(), callbacks=[Clock()]).train()
    if int(os.environ.get("RANK", "0")) == 0:
        speed = size * recipe.data.sequence_length / statistics.median(step_times(ends, warm_up))
        print(json.dumps({"tokens_per_s": speed, "first_step_at": ends[0]}), flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
