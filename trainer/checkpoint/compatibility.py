"""Whether a checkpoint's recipe and today's can be one run, and what is said about the differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from trainer.checkpoint.manifest import Manifest
from trainer.config import Recipe
from trainer.errors import ConfigError

# Differences that change nothing which is learnt.
_SILENT = ("output_dir", "resume", "checkpoint", "strategy", "metrics", "watch", "training.log_every", "data.cache_")
_PLAN = ("training.steps", "optimizer.learning_rate", "schedule")


def check(manifest: Manifest, recipe: Recipe, *, data_digest: str, say: Callable[[str], None]) -> None:
    """Raises ConfigError for another model; says what else differs, and what follows from it.

    Keys that only one of the two knows are not compared: a recipe of an older or newer version has other keys.
    """
    before, now = manifest["config"], recipe.model_dump(mode="json")
    model = dict(_changes(before.get("model") or {}, now["model"], "model"))
    if model:
        key, (old, new) = next(iter(model.items()))
        raise ConfigError(
            f"{key} is {new} in the recipe and {old} in the checkpoint of step {manifest['step']}: another model; "
            "use another output_dir, or resume: never."
        )
    changed = {key: values for key, values in _changes(before, now) if not key.startswith(_SILENT)}
    if changed:
        listed = ", ".join(f"{key} {old} → {new}" for key, (old, new) in changed.items())
        say(f"note: the recipe has changed since the checkpoint and counts from here on: {listed}")
    if any(key.startswith(_PLAN) for key in changed):
        say("note: the learning rate follows the new plan from the next step on")
    if manifest.get("data_digest") != data_digest:
        say("note: the training documents are not those of the checkpoint")


def _changes(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    for key in before.keys() & now.keys():
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(before[key], dict) and isinstance(now[key], dict):
            yield from _changes(before[key], now[key], name)
        elif before[key] != now[key]:
            yield name, (before[key], now[key])
