"""Which checkpoints may go: a pure function of what there is."""

from __future__ import annotations

import math
from collections.abc import Mapping

from trainer.checkpoint.manifest import Manifest


def superfluous(
    manifests: Mapping[int, Manifest],
    *,
    current: int,
    keep: int,
    keep_every_steps: int | None,
    keep_best: bool,
    resumed_from: int | None,
) -> list[int]:
    """Steps to remove, once `current` is complete everywhere. Steps above it are not ours to judge.

    Kept are the newest `keep` by number, multiples of `keep_every_steps`, the one with the lowest held-out loss if
    `keep_best`, and the one that the run was resumed from.
    """
    ours = sorted(step for step in manifests if step <= current)
    kept = {*ours[-keep:], current, resumed_from}
    if keep_every_steps:
        kept |= {step for step in ours if step % keep_every_steps == 0}
    scored = {step: loss for step in ours if (loss := _loss(manifests[step])) is not None}
    if keep_best and scored:
        kept.add(min(scored, key=scored.__getitem__))
    return [step for step in ours if step not in kept]


def _loss(manifest: Manifest) -> float | None:
    value = manifest.get("held_out_loss")
    return value if isinstance(value, float) and math.isfinite(value) else None
