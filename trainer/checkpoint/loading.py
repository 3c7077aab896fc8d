"""Resuming: the newest checkpoint that the ranks can get intact between them, or a refusal on all ranks alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from trainer.checkpoint import random_state
from trainer.checkpoint.manifest import METADATA, RANDOM, Manifest, step_name
from trainer.checkpoint.metadata import PlainPlanner, Reader, differences, needed_files, open_metadata
from trainer.checkpoint.store import Store
from trainer.distributed import Processes
from trainer.errors import CheckpointError, Unreachable
from trainer.strategies import Strategy

Check = Callable[[Manifest], None]


@dataclass(frozen=True)
class Resumed:
    step: int
    manifest: Manifest


def tensors(state: dict[str, Any]) -> dict[str, Any]:
    """What of a strategy's state a checkpoint holds: not the optimizer's settings, which are the recipe's alone."""
    optimizer = {key: value for key, value in state["optimizer"].items() if key != "param_groups"}
    return {"model": state["model"], "optimizer": optimizer}


def resume(
    store: Store,
    strategy: Strategy,
    processes: Processes,
    group: dist.ProcessGroup,
    *,
    check: Check,
    say: Callable[[str], None],
    only: int | None = None,
) -> Resumed | None:
    """Loads the newest complete checkpoint of a store (or step `only`); None when there is none at all.

    `check(manifest)` may refuse it before anything is loaded. Raises CheckpointError when there are checkpoints but
    none is complete: starting from step 0 would silently throw work away.
    """
    known, damaged = _look(store, processes, say)
    problems = list(damaged)
    for (step, _), manifest in sorted(known.items(), reverse=True):
        if only not in (None, step):
            continue
        name = f"{store.place}/{step_name(step)}"
        lost = store.verify(step, manifest)
        if lost:
            problems.append(f"checkpoint {name} is not usable: no node has intact {', '.join(lost)}")
            say(f"note: {problems[-1]}")
            continue
        check(manifest)
        try:
            _load(store, step, manifest, strategy, processes, group)
        except _Damaged as error:
            problems.append(f"checkpoint {name} is not usable: {error}")
            say(f"note: {problems[-1]}")
            continue
        return Resumed(step=step, manifest=manifest)
    if problems:
        raise CheckpointError(
            f"{problems[0]}, and no older checkpoint in {store.place} is complete; bring the files back, "
            "or start again with resume: never."
        )
    return None


class _Damaged(Exception):
    """Found before anything was loaded, by all ranks: an older checkpoint may do."""


def _look(
    store: Store, here: Processes, say: Callable[[str], None]
) -> tuple[dict[tuple[int, float], Manifest], list[str]]:
    found = here.together(
        lambda: store.look() if store.owner else ({}, [], []), error=CheckpointError, what=f"read {store.place}"
    )
    known: dict[tuple[int, float], Manifest] = {}
    notes: list[str] = []
    damaged: list[str] = []
    for manifests, remarks, broken in here.gather(found):
        known |= {(step, float(manifest["time"])): manifest for step, manifest in manifests.items()}
        notes += remarks
        damaged += broken
    for text in dict.fromkeys([*notes, *damaged]):
        say(f"note: {text}; it is passed over")
    return known, damaged


def _load(
    store: Store, step: int, manifest: Manifest, strategy: Strategy, here: Processes, group: dist.ProcessGroup
) -> None:
    where = f"{store.place}/{step_name(step)}"
    try:
        data = store.read(step, METADATA, manifest)
    except Unreachable:
        raise
    except CheckpointError as error:
        raise _Damaged(str(error).rstrip(".")) from error
    found = open_metadata(data, where=f"{where}/{METADATA}")
    state = strategy.state()
    wanted = tensors(state)
    shapes = {f"model.{name}": tuple(value.shape) for name, value in wanted["model"].items() if _is_tensor(value)}
    problems = next((part for part in here.gather(differences(found, shapes)) if part), [])
    if problems:
        raise CheckpointError(
            f"{where} is of another model ({len(problems)} tensors differ: {problems[0]}); "
            "use another output_dir, or resume: never."
        )
    try:
        # All that could be read wrongly is checked here, so that no rank has loaded anything yet when one refuses.
        needed = here.together(lambda: _needed(found, wanted, manifest), error=CheckpointError, what=f"load {where}")
        folder = store.bring(step, manifest, needed | ({RANDOM} & manifest["files"].keys()))
        random = _read_random(folder / RANDOM, here.rank)
    except Unreachable:
        raise
    except CheckpointError as error:
        raise _Damaged(str(error).rstrip(".")) from error
    try:
        dcp.load(wanted, storage_reader=Reader(folder, found), planner=PlainPlanner(), process_group=group)
    except CheckpointException as error:
        reasons = "; ".join(f"rank {rank}: {failure[0]}" for rank, failure in sorted(error.failures.items()))
        raise CheckpointError(f"cannot load {where}: {reasons}.") from error
    strategy.load_state({**state, "model": wanted["model"], "optimizer": {**state["optimizer"], **wanted["optimizer"]}})
    if random:
        random_state.restore(random)
    store.forget(step)


def _needed(found: Any, wanted: dict[str, Any], manifest: Manifest) -> set[str]:
    try:
        names = needed_files(found, wanted)
    except (KeyError, RuntimeError, ValueError) as error:
        raise OSError(str(error)) from error
    foreign = sorted(names - manifest["files"].keys())
    if foreign:
        raise OSError(f"{METADATA} wants {foreign[0]}, which is no file of this checkpoint")
    return names


def _read_random(path: Path, rank: int) -> dict[str, Tensor]:
    """Empty when this rank saved none: a rank that is new in a larger world keeps its own. Raises CheckpointError."""
    if not path.exists():
        return {}
    prefix = f"{rank}/"
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return {name.removeprefix(prefix): file.get_tensor(name) for name in file.keys() if name.startswith(prefix)}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{path} holds no states of random numbers ({error}); use another checkpoint.") from None


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
