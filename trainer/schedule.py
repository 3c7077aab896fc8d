"""The learning rate of each optimizer step: a pure function of the recipe and the step, so nothing has to be saved.

Steps are optimizer steps: neither the world size nor the accumulation changes the series. A recipe whose length or
schedule changed between two starts follows its new plan from the step it is at. Imports no torch.
"""

import math

from trainer.config import Recipe, ScheduleSection


def learning_rate(recipe: Recipe, step: int) -> float:
    """For step 1 … steps. A step that was skipped as bad counts like any other."""
    return recipe.optimizer.learning_rate * share_of_peak(recipe.schedule, step, recipe.training.steps)


def share_of_peak(schedule: ScheduleSection, step: int, steps: int) -> float:
    """Linear warm-up to 1 at step `warmup_steps`, then the decay of `kind`, to `final_share` at step `steps`.

    A warm-up as long as the run or longer leaves no room for a decay: the rate only rises.
    """
    warmup, final = schedule.warmup_steps, schedule.final_share
    if step <= warmup:
        return step / warmup
    begin = warmup
    if schedule.kind == "warmup-stable-decay":
        begin = max(warmup, steps - max(1, round(schedule.decay_share * steps)))
    if schedule.kind == "constant" or step <= begin:
        return 1.0
    progress = min(1.0, (step - begin) / max(1, steps - begin))
    if schedule.kind == "cosine":
        return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))
    return 1 - (1 - final) * progress
