"""What a strategy promises besides equal losses: a step that may not be made isn't, and wrong settings are refused."""

import math
from collections.abc import Iterable
from typing import Any

import pytest

from tests.trainer import ranks
from tests.trainer.conftest import RECIPE
from trainer.errors import ConfigError
from trainer.recipe_file import load
from trainer.strategies import STRATEGIES
from trainer.strategies.worlds import replicas_of_nodes

pytestmark = pytest.mark.ranks_import(
    "deepspeed.runtime.zero.muon.muon_optimizer", "trainer.strategies.deepspeed"
)  # deepspeed.initialize imports the first, and with it a compiler

NAMES = [["single"], ["ddp"], ["fsdp"], ["hsdp"]] + [["deepspeed", f"stage={stage}"] for stage in (1, 2, 3)]


def overrides(name: str, *options: str) -> list[str]:
    return [f"strategy={name}", *(f"strategy.{option}" for option in options)]


def test_every_strategy_is_tested_here() -> None:
    assert {name for name, *_ in NAMES} == set(STRATEGIES)


@pytest.mark.parametrize("discard", [False, True], ids=["infinite norm", "discarded"])
@pytest.mark.parametrize("name", NAMES, ids=" ".join)
def test_a_step_that_may_not_be_made_leaves_no_trace(name: list[str], discard: bool) -> None:
    """Because its norm isn't finite, or because the loop says so (a loss that jumped)."""
    world = 1 if name == ["single"] else 2
    for norms, unchanged, equal in ranks.call(world, _with_a_bad_step, overrides(*name), discard):
        first, bad, after = norms
        assert first > 1.0  # the norm before clipping at 1
        assert not math.isfinite(bad)
        assert unchanged
        assert after > 0
        assert equal


def _with_a_bad_step(settings: list[str], discard: bool) -> tuple[list[float], bool, bool]:
    """(the norms, whether the bad step left the state alone, whether the run equals one without a bad step)."""
    import torch

    from trainer import optim
    from trainer.distributed import processes
    from trainer.models.llama import Llama
    from trainer.strategies import make_strategy

    recipe = load(RECIPE, settings)

    def make(parameters: Iterable[Any]) -> Any:
        return optim.make_optimizer(recipe.optimizer, parameters)

    def prepared(here: Any) -> Any:
        torch.manual_seed(1)
        strategy = make_strategy(here, recipe)
        strategy.prepare(Llama(recipe.model), make)
        return strategy

    tokens = torch.arange(64).reshape(2, 32)

    def step(strategy: Any, factor: float) -> float:
        strategy.backward(lambda: strategy.module(tokens).pow(2).sum() * factor, last=True)
        return float(strategy.clip_and_step(1.0))

    def drop(strategy: Any) -> float:
        for last in (False, True):
            strategy.backward(lambda: strategy.module(tokens).sum(), last=last)
        strategy.discard_gradients()
        return math.nan

    with processes() as here:
        strategy, good = prepared(here), prepared(here)
        norms = [step(strategy, 1.0)]
        before = _flat(strategy.state())
        norms.append(drop(strategy) if discard else step(strategy, float("inf")))
        unchanged = torch.equal(_flat(strategy.state()), before)
        norms.append(step(strategy, 1.0))
        step(good, 1.0)
        step(good, 1.0)
        return norms, unchanged, torch.equal(_flat(strategy.state()), _flat(good.state()))


def _flat(state: dict[str, Any]) -> Any:
    """Copies of this rank's numbers: weights, moments, step."""
    import torch
    from torch.distributed.tensor import DTensor

    tensors = [*state["model"].values()]
    for moments in state["optimizer"]["state"].values():
        tensors += [moments[key] for key in sorted(moments)]
    local = [value.to_local() if isinstance(value, DTensor) else value for value in tensors]
    return torch.cat([value.detach().flatten().double() for value in local])


@pytest.mark.parametrize("name", NAMES, ids=" ".join)
def test_an_optimizer_that_holds_other_weights_and_weights_in_half_precision_are_refused(name: list[str]) -> None:
    for foreign, half in ranks.call(1, _with_a_foreign_optimizer_and_half_precision, overrides(*name)):
        assert "leaves out" in foreign
        assert "embedding.weight" in foreign
        assert "embedding.weight is trained in bfloat16, where small steps are lost" in half


def _with_a_foreign_optimizer_and_half_precision(settings: list[str]) -> tuple[str, str]:
    import torch

    from trainer import optim
    from trainer.distributed import processes
    from trainer.models.llama import Llama
    from trainer.strategies import make_strategy

    recipe = load(RECIPE, settings)
    with processes() as here:
        early = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2, 2))])
        with pytest.raises(ConfigError) as foreign:
            make_strategy(here, recipe).prepare(Llama(recipe.model), lambda _: early)
        with pytest.raises(ConfigError) as half:
            make_strategy(here, recipe).prepare(
                Llama(recipe.model).bfloat16(), lambda weights: optim.make_optimizer(recipe.optimizer, weights)
            )
        return str(foreign.value), str(half.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["strategy=ddp", "strategy.stage=2"], "stage has no meaning for strategy.name ddp"),
        (["strategy=fsdp", "strategy.replicate=2"], "replicate has no meaning for strategy.name fsdp"),
        (["strategy=deepspeed", "strategy.cpu_offload=true"], "cpu_offload has no meaning"),
        (["strategy=deepspeed", "strategy.stage=0"], "use strategy.name ddp"),
        (["strategy=deepspeed", "strategy.stage=4"], "1, 2 or 3"),
        (["strategy=deepspeed", "strategy.offload_optimizer=gpu"], "'none', 'cpu' or 'nvme'"),
    ],
)
def test_an_option_that_means_nothing_is_refused_before_anything_starts(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(RECIPE, settings)


def test_a_mesh_that_does_not_cover_the_world_names_the_valid_choices() -> None:
    with pytest.raises(ranks.RankFailed, match="choose one of 1, 2"):
        ranks.train(2, RECIPE, overrides("hsdp", "replicate=3"))


def test_nodes_with_unequal_numbers_of_ranks_make_no_replicas() -> None:
    assert (replicas_of_nodes({2}, 4), replicas_of_nodes({8}, 1)) == (2, 1)
    with pytest.raises(ConfigError, match=r"2 to 4 ranks; set strategy\.replicate to one of 1, 2, 3, 6"):
        replicas_of_nodes({2, 4}, 6)
