"""Which steps must not reach the weights: losses that are no numbers, and losses far above the recent ones.

Decided from numbers that are the same on all ranks, before the optimizer's step, so that all ranks agree.
"""

import math
import statistics
from collections import deque
from typing import Any

from trainer.config import WatchSection
from trainer.errors import BadStep

_WINDOW = 64  # good losses that a new one is compared with
_LEAST = 16  # fewer than these say nothing about what is usual
_NORMAL = 1.4826  # standard deviations in one median absolute deviation, for normally distributed losses
_FLOOR = 0.001  # of the median: losses that hardly differ would otherwise make any change a spike


class BadSteps:
    """Judges each step's loss and counts the bad ones, all and in a row."""

    def __init__(self, config: WatchSection) -> None:
        self._config = config
        self._losses: deque[float] = deque(maxlen=_WINDOW)
        self.total = self.in_a_row = 0

    def facts(self) -> dict[str, Any]:
        """For the checkpoint: a resumed run judges its next steps as an undisturbed one would."""
        return {"total": self.total, "in_a_row": self.in_a_row, "recent_losses": list(self._losses)}

    def resume(self, facts: dict[str, Any] | int) -> None:
        """Goes on from a checkpoint's `facts()`; the first form of a manifest had the total alone."""
        if isinstance(facts, int):
            self.total = facts
            return
        self.total, self.in_a_row = facts["total"], facts["in_a_row"]
        self._losses.extend(facts["recent_losses"])

    def problem(self, loss: float) -> str | None:
        """Why a step with this loss, averaged over all ranks, is bad. None: it isn't."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        factor = self._config.spike_factor
        if factor is None or len(self._losses) < _LEAST:
            return None
        median = statistics.median(self._losses)
        deviation = _NORMAL * statistics.median(abs(value - median) for value in self._losses)
        limit = median + factor * max(deviation, _FLOOR * abs(median))
        if loss <= limit:
            return None
        return f"the loss {loss:.4g} is a spike: above {limit:.4g} (median of {len(self._losses)}: {median:.4g})"

    def good(self, loss: float) -> None:
        self._losses.append(loss)
        self.in_a_row = 0

    def bad(self, step: int, problem: str) -> None:
        """Counts a bad step. Raises BadStep when it is one too many."""
        self.total += 1
        self.in_a_row += 1
        advice = "lower optimizer.learning_rate, or look at the step's data"
        if self._config.on_bad_step == "stop":
            raise BadStep(f"step {step}: {problem}; the weights are those before it. To go on: {advice}.")
        if self.in_a_row >= self._config.max_bad_steps:
            raise BadStep(
                f"step {step}: {problem}; that is bad step {self.in_a_row} in a row (watch.max_bad_steps). "
                f"None of them changed the weights. To go on: {advice}."
            )

    def end(self, step: int, *, held_out_loss: float | None) -> None:
        """At the last step; the loss is None when there is no held-out part.

        Raises BadStep for a run that is too short for max_bad_steps to end it, yet has no model to show.
        """
        advice = "lower optimizer.learning_rate or weight_decay, or look at the data and the model's keys"
        if held_out_loss is not None and not math.isfinite(held_out_loss):
            raise BadStep(f"the held-out loss at the last step, {step}, is {held_out_loss}. To train again: {advice}.")
        if self.total >= step:
            raise BadStep(f"no step of {step} was good, so no weight has changed. To train again: {advice}.")
