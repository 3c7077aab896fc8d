"""torch.profiler for chosen steps and ranks: <output>/traces/rank-0-steps-10-12.json, for Perfetto."""

import sys
from pathlib import Path
from typing import Any

from trainer.config import ProfileSection


class Profiler:
    """The loop says `before` and `after` of each step. A trace that can't be written doesn't stop training."""

    def __init__(self, output: Path, config: ProfileSection, *, rank: int) -> None:
        self._steps = config.steps if rank in config.ranks else None
        self._folder, self._rank = output / "traces", rank
        self._profile: Any = None
        self._first = 0

    def before(self, step: int) -> None:
        if self._steps is None or self._profile is not None or not self._steps[0] <= step <= self._steps[1]:
            return
        from torch.profiler import profile  # seconds of imports that only this needs

        self._profile, self._first = profile(record_shapes=True), step
        self._profile.start()

    def after(self, step: int) -> None:
        """Writes the trace when `step` was the last one of it."""
        if self._profile is not None and self._steps is not None and step >= self._steps[1]:
            self._save(step)

    def close(self, step: int) -> None:
        """Writes what there is when the run ends in the middle."""
        if self._profile is not None:
            self._save(step)

    def _save(self, step: int) -> None:
        profile, self._profile, self._steps = self._profile, None, None
        path = self._folder / f"rank-{self._rank}-steps-{self._first}-{step}.json"
        try:
            profile.stop()
            self._folder.mkdir(parents=True, exist_ok=True)
            profile.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            print(f"warning: rank {self._rank}: no trace in {path}: {error}", file=sys.stderr, flush=True)
