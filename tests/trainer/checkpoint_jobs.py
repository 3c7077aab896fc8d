"""What ranks do in the checkpoint tests: ranks.call(world, in_world, job, …) gives each job the rank's `Processes`."""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tests.trainer.conftest import RECIPE
from trainer import optim
from trainer.checkpoint import Checkpoints
from trainer.checkpoint.folder import Folder
from trainer.config import CheckpointSection, Recipe
from trainer.distributed import Processes, processes
from trainer.errors import TrainerError
from trainer.models.llama import Llama
from trainer.recipe_file import load
from trainer.strategies import Strategy, make_strategy

FACTS: dict[str, Any] = {"samples_seen": 16, "config": {}, "data_digest": "x"}


def in_world(job: Callable[..., Any], *arguments: Any) -> Any:
    """job(here, *arguments); an error that all ranks raise together ends the world in order, as success does."""
    problem: TrainerError | None = None
    result = None
    with processes() as here:
        try:
            result = job(here, *arguments)
        except TrainerError as error:
            problem = error
    if problem:
        raise problem
    return result


def prepared(here: Processes, recipe: Recipe) -> Strategy:
    torch.manual_seed(recipe.seed)
    strategy = make_strategy(here, recipe)

    def make_optimizer(parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        return optim.make_optimizer(recipe.optimizer, parameters)

    strategy.prepare(Llama(recipe.model), make_optimizer)
    return strategy


def recipe_for(world: int, strategy: str) -> Recipe:
    """`strategy`: a name of the recipe's, or zero1, zero2, zero3."""
    if strategy.startswith("zero"):
        return load(RECIPE, ["strategy=deepspeed", f"strategy.stage={strategy.removeprefix('zero')}"])
    extra = ["strategy.replicate=2"] if strategy == "hsdp" and world == 4 else []
    return load(RECIPE, [f"strategy={strategy}", *extra])


def step(strategy: Strategy, seed: int) -> None:
    """One optimizer step on a batch that all ranks share, so that every strategy's average is the same."""
    tokens = torch.randint(0, 257, (2, 32), generator=torch.Generator().manual_seed(seed))
    strategy.backward(lambda: strategy.module(tokens).square().mean(), last=True)
    strategy.clip_and_step(1.0)


def full(state: dict[str, Any]) -> dict[str, Tensor]:
    """Flat, unsharded copies of model and optimizer. Called by all ranks."""
    flat: dict[str, Tensor] = {}

    def visit(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                visit(f"{prefix}.{key}", inner)
        elif isinstance(value, Tensor):
            flat[prefix] = (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()

    visit("model", state["model"])
    visit("optimizer", state["optimizer"]["state"])
    return flat


def checkpoints(here: Processes, output: Path, open_at: Any = None, **config: Any) -> Checkpoints:
    extra = {"open_at": open_at} if open_at else {}
    return Checkpoints(output, here, CheckpointSection(**config), say=lambda text: print(text, flush=True), **extra)


def save(
    here: Processes, strategy_name: str, output: Path, config: dict[str, Any], steps: tuple[int, ...] = (1,)
) -> None:
    """Trains to each of `steps` and saves there; the last full state goes to <output>/state.pt."""
    strategy = prepared(here, recipe_for(here.world, strategy_name))
    kept = checkpoints(here, output, **config)
    for number in range(1, max(steps) + 1):
        step(strategy, number)
        if number in steps:
            kept.save(number, strategy, facts=FACTS)
    kept.wait()
    kept.close()
    state = full(strategy.state())
    if here.rank == 0:
        torch.save(state, output / "state.pt")


def opens(here: Processes, strategy_name: str, outputs: list[Path]) -> dict[str, str]:
    """Loads one checkpoint after another; output → what differs, for those that differ."""
    wrong = {}
    strategy = prepared(here, recipe_for(here.world, strategy_name))
    for output in outputs:
        step(strategy, 99)  # other weights, moments and step counts than the saved ones
        kept = checkpoints(here, output)
        found = kept.resume(strategy, check=lambda _: None)
        kept.close()
        expected, state = torch.load(output / "state.pt"), full(strategy.state())
        if found is None or found.step != 2:
            wrong[str(output)] = f"resumed {found}"
        elif expected.keys() != state.keys():
            wrong[str(output)] = f"names differ: {sorted(expected.keys() ^ state.keys())[:3]}"
        else:
            names = [name for name in expected if not torch.equal(expected[name].float(), state[name].float())]
            if names:
                wrong[str(output)] = f"{len(names)} tensors differ, for example {names[0]}"
    return wrong


def output_of(here: Processes, folders: list[Path]) -> Path:
    """Ranks in equal shares on the nodes that the folders stand for."""
    return folders[here.rank * len(folders) // here.world]


def save_on_nodes(
    here: Processes, strategy_name: str, folders: list[Path], config: dict[str, Any]
) -> dict[str, Tensor]:
    strategy = prepared(here, recipe_for(here.world, strategy_name))
    kept = checkpoints(here, output_of(here, folders), **config)
    for number in (1, 2):
        step(strategy, number)
    kept.save(2, strategy, facts=FACTS)
    kept.wait()
    kept.close()
    return full(strategy.state())


def resume_on_nodes(
    here: Processes, strategy_name: str, folders: list[Path], wanted: str = "auto", config: dict[str, Any] | None = None
) -> tuple[int, dict[str, Tensor]] | None:
    strategy = prepared(here, recipe_for(here.world, strategy_name))
    kept = checkpoints(here, output_of(here, folders), **(config or {}))
    try:
        found = kept.resume(strategy, wanted=wanted, check=lambda _: None)
    finally:
        kept.close()
    return None if found is None else (found.step, full(strategy.state()))


def begin_on_nodes(
    here: Processes, strategy_name: str, nodes: list[Path], wanted: str
) -> tuple[int, dict[str, Tensor]] | None:
    """Begins a new run with another's checkpoint. `wanted` is relative: each node has its own folder of that name."""
    os.chdir(output_of(here, nodes))
    return resume_on_nodes(here, strategy_name, [Path("new")], wanted)


class BrokenFolder(Folder):
    """A folder whose disk is full on one rank."""

    def put(self, step: int, name: str, pieces: Iterable[memoryview]) -> dict[str, Any]:
        if self._processes.rank == 1:
            raise OSError(28, "No space left on device", name)
        return super().put(step, name, pieces)


def fail_on_one_rank(here: Processes, output: Path) -> tuple[list[int], str]:
    """Trains on while the save fails, agreeing each step; (steps at which ranks learnt of it, the error)."""
    strategy = prepared(here, recipe_for(here.world, "fsdp"))
    kept = checkpoints(here, output, open_at=lambda location, **_: BrokenFolder(Path(location), here))
    kept.save(1, strategy, facts=FACTS)
    number = 0
    try:
        while True:
            number += 1
            step(strategy, number)
            if here.sum(float(kept.failed))[0]:
                kept.wait()
    except Exception as error:  # noqa: BLE001 - whatever it is, it must be the same on all ranks
        return here.gather(number), f"{type(error).__name__}: {error}"
    finally:
        kept.close()


class DeadlyFolder(Folder):
    """The process ends before its second save is complete, as SIGKILL would end it."""

    def complete(self, step: int, manifest: dict[str, Any]) -> None:
        if step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        super().complete(step, manifest)


def die_in_the_second_save(here: Processes, output: Path) -> None:
    strategy = prepared(here, recipe_for(1, "single"))
    step(strategy, 1)
    kept = checkpoints(here, output, lambda location, **_: DeadlyFolder(Path(location), here), keep=1)
    kept.save(1, strategy, facts=FACTS)
    kept.save(2, strategy, facts=FACTS)
    kept.wait()


class SlowFolder(Folder):
    """A folder whose writes wait until the test lets them go on."""

    gate = threading.Event()
    entered = threading.Event()

    def put(self, step: int, name: str, pieces: Iterable[memoryview]) -> dict[str, Any]:
        if step > 1:
            self.entered.set()
            self.gate.wait(60)
        return super().put(step, name, pieces)


def trains_on_during_a_save(here: Processes, output: Path) -> list[str]:
    """Saves step 2 while training goes on to step 5; the names that differ from the state of step 2."""
    SlowFolder.gate.clear()
    SlowFolder.entered.clear()
    strategy = prepared(here, recipe_for(here.world, "fsdp"))
    kept = checkpoints(here, output, open_at=lambda location, **_: SlowFolder(Path(location), here), keep=1)
    step(strategy, 1)
    kept.save(1, strategy, facts=FACTS)
    step(strategy, 2)
    kept.save(2, strategy, facts=FACTS)
    expected = full(strategy.state())
    assert SlowFolder.entered.wait(60)
    for number in (3, 4, 5):
        step(strategy, number)
    # Nothing is moved or removed before the new one is complete everywhere.
    before = sorted(path.name for path in (output / "checkpoints").iterdir() if not path.name.startswith("."))
    assert before == ["step-00000001"], before
    here.barrier()
    SlowFolder.gate.set()
    kept.wait()
    kept.close()
    after = sorted(path.name for path in (output / "checkpoints").iterdir() if not path.name.startswith("."))
    assert after == ["step-00000002"], after
    again = prepared(here, recipe_for(here.world, "fsdp"))
    reader = checkpoints(here, output)
    reader.resume(again, check=lambda _: None)
    reader.close()
    found = full(again.state())
    return [name for name in expected if not torch.equal(expected[name], found[name])]


def break_an_upload(here: Processes, output: Path, config: dict[str, Any]) -> None:
    """Rank 1's connection breaks after it has sent some parts of a multi-part upload."""
    from trainer.checkpoint import bucket

    class Breaks(bucket.Bucket):
        def put(self, step: int, name: str, pieces: Iterable[memoryview]) -> dict[str, Any]:
            def broken() -> Iterator[memoryview]:
                yield memoryview(bytes(12 * 2**20))  # more than one part
                raise OSError("the connection broke")

            return super().put(step, name, broken() if here.rank == 1 else pieces)

    bucket._BLOCK = 5 * 2**20
    strategy = prepared(here, recipe_for(here.world, "fsdp"))
    kept = checkpoints(here, output, lambda location, **rest: Breaks(location, **rest), **config)
    try:
        kept.save(1, strategy, facts=FACTS)
        kept.wait()
    finally:
        kept.close()


def require_room(here: Processes, output: Path, config: dict[str, Any]) -> None:
    checkpoints(here, output, **config).require_room(held=1, model=1)


def start_afresh(here: Processes, output: Path, config: dict[str, Any]) -> None:
    checkpoints(here, output, **config).start_afresh()


def die_in_an_upload(here: Processes, output: Path, config: dict[str, Any]) -> None:
    """The process ends, as SIGKILL would end it, when it has sent some parts of the second save's file."""
    from trainer.checkpoint import bucket

    class Deadly(bucket.Bucket):
        def put(self, step: int, name: str, pieces: Iterable[memoryview]) -> dict[str, Any]:
            def deadly() -> Iterator[memoryview]:
                yield memoryview(bytes(12 * 2**20))  # more than one part
                os.kill(os.getpid(), signal.SIGKILL)

            return super().put(step, name, deadly() if step == 2 else pieces)

    bucket._BLOCK = 5 * 2**20
    strategy = prepared(here, recipe_for(1, "single"))
    kept = checkpoints(here, output, lambda location, **rest: Deadly(location, **rest), **config)
    kept.save(1, strategy, facts=FACTS)
    kept.save(2, strategy, facts=FACTS)
    kept.wait()
