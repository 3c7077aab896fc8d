"""What the loop's times add up to: speed, percentiles, utilisation and goodput."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

Pause = Literal["checkpoint_stall_s", "evaluation_s"]


@dataclass
class Meter:
    """One a rank. Times are this rank's; `window` gives the figures since the call before."""

    world: int
    positions_per_step: int  # tokens that the model computes in a global batch, those that don't count included
    flops_per_token: float | None = None
    peak_flops: float | None = None  # of one rank's device
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    productive_s: float = 0.0  # in steps that count, since the first start
    first_start: float = 0.0  # Unix time
    _steps: list[float] = field(default_factory=list)
    _tokens: int = 0
    data_wait_s: float = 0.0  # in this window
    _pauses: dict[Pause, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.first_start = self.first_start or self.wall()
        self._began = self._window_began = self.clock()
        self._productive_before = self.productive_s

    def resume(self, facts: dict[str, float]) -> None:
        """Goes on from a checkpoint's `facts()`."""
        self.first_start = facts["first_start"]
        self.productive_s = self._productive_before = facts["productive_s"]

    def facts(self) -> dict[str, float]:
        """For the checkpoint. Steps after it that are lost are then no part of the goodput."""
        return {"first_start": self.first_start, "productive_s": self.productive_s}

    def step(self, seconds: float, *, tokens: int, data_wait_s: float) -> None:
        """A step that counts."""
        self._steps.append(seconds)
        self._tokens += tokens
        self.data_wait_s += data_wait_s
        self.productive_s += seconds

    @contextmanager
    def pause(self, what: Pause) -> Iterator[None]:
        """Time that the loop spends on something else than steps."""
        began = self.clock()
        try:
            yield
        finally:
            self._pauses[what] = self._pauses.get(what, 0.0) + self.clock() - began

    def window(self) -> dict[str, Any]:
        """The fields of the event `window` that one rank knows."""
        now = self.clock()
        seconds = max(now - self._window_began, 1e-9)
        speed = self._tokens / seconds
        figures: dict[str, Any] = {
            "tokens_per_s": speed,
            "tokens_per_s_per_rank": speed / self.world,
            "step_s_p50": percentile(self._steps, 50),
            "step_s_p95": percentile(self._steps, 95),
            "checkpoint_stall_s": self._pauses.get("checkpoint_stall_s", 0.0),
            "evaluation_s": self._pauses.get("evaluation_s", 0.0),
            "goodput": (self.productive_s - self._productive_before) / max(now - self._began, 1e-9),
            "goodput_since_first_start": self.productive_s / max(self.wall() - self.first_start, 1e-9),
        }
        if (used := self._utilisation()) is not None:
            figures["mfu"] = used
        self._steps, self._tokens, self.data_wait_s, self._pauses = [], 0, 0.0, {}
        self._window_began = now
        return figures

    def _utilisation(self) -> float | None:
        """Model FLOP/s by peak, in steps alone (pauses are in the goodput). More than the peak is our error: None."""
        if self.flops_per_token is None or self.peak_flops is None or not self._steps:
            return None
        reached = self.flops_per_token * self.positions_per_step * len(self._steps) / max(sum(self._steps), 1e-9)
        used = reached / (self.peak_flops * self.world)
        return used if used <= 1 else None


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of all are not above; NaN of none."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]
