"""DeepSpeed: a user's own JSON against the run, what its offload needs, and state that any strategy can take over."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer import ranks
from tests.trainer.conftest import RECIPE, Start, command, events, finish, numbers
from trainer.errors import ConfigError
from trainer.recipe_file import load
from trainer.strategies import check
from trainer.strategies.deepspeed_config import build

pytestmark = pytest.mark.ranks_import(
    "deepspeed.runtime.zero.muon.muon_optimizer", "trainer.strategies.deepspeed"
)  # deepspeed.initialize imports the first, and with it a compiler

WORLD = 4


def settings(tmp_path: Path, values: Any, *overrides: str, world: int = WORLD) -> dict[str, Any]:
    path = tmp_path / "ds.json"
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return build(load(RECIPE, ["strategy=deepspeed", f"strategy.deepspeed_config={path}", *overrides]), world)


@pytest.mark.parametrize(
    ("values", "theirs", "ours", "source"),
    [
        ({"train_batch_size": 32}, "32", "16", "training.global_batch_size"),
        ({"train_batch_size": "16"}, '"16"', "16", "training.global_batch_size"),
        ({"train_micro_batch_size_per_gpu": 2}, "2", "1", "training.micro_batch_size"),
        ({"gradient_accumulation_steps": 1}, "1", "4", "global_batch_size over 4 ranks"),
        ({"gradient_clipping": 0.5}, "0.5", "1.0", "training.clip_norm"),
        ({"bf16": {"enabled": True}}, "true", "false", "training.precision float32"),
        ({"fp16": {"enabled": True}}, "true", "false", "training.precision"),
        ({"optimizer": {"type": "Lamb"}}, '"Lamb"', '"AdamW"', "this trainer"),
        ({"optimizer": {"params": {"lr": 0.1}}}, "0.1", "0.001", "optimizer.learning_rate"),
        ({"optimizer": {"params": {"betas": [0.9, 0.999]}}}, "[0.9, 0.999]", "[0.9, 0.95]", "optimizer.betas"),
        ({"optimizer": {"params": {"weight_decay": 0}}}, "0", "0.1", "optimizer.weight_decay"),
        ({"gradient_allreduce_op": "sum"}, '"sum"', '"mean"', "this trainer"),
        ({"zero_force_ds_cpu_optimizer": True}, "true", "false", "this trainer"),
    ],
)
def test_a_value_that_contradicts_the_run_is_refused_with_both_values_and_places(
    tmp_path: Path, values: Any, theirs: str, ours: str, source: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(tmp_path, values)
    for part in (str(tmp_path / "ds.json"), f"is {theirs}, but", f"makes it {ours};", source):
        assert part in str(caught.value)


def test_the_stage_and_offload_may_stand_in_either_place_but_not_differ(tmp_path: Path) -> None:
    values = {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu", "pin_memory": True}}}
    assert settings(tmp_path, values)["zero_optimization"]["stage"] == 3
    assert settings(tmp_path, values)["zero_optimization"]["offload_param"] == {"device": "cpu", "pin_memory": True}
    with pytest.raises(ConfigError, match=r"zero_optimization.stage is 3, but strategy.stage makes it 2"):
        settings(tmp_path, {"zero_optimization": {"stage": 3}}, "strategy.stage=2")
    with pytest.raises(ConfigError, match=r"strategy.offload_optimizer makes it \"cpu\""):
        settings(
            tmp_path, {"zero_optimization": {"offload_optimizer": {"device": "none"}}}, "strategy.offload_optimizer=cpu"
        )


def test_auto_is_filled_in_and_other_keys_pass_through(tmp_path: Path) -> None:
    result = settings(
        tmp_path,
        {
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto",
            "bf16": {"enabled": "auto"},
            "fp16": {"enabled": "auto", "loss_scale": 0},
            "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}},
            "zero_optimization": {"stage": "auto", "reduce_bucket_size": "auto", "overlap_comm": False},
            "wall_clock_breakdown": True,
        },
        "training.precision=bf16",
    )
    assert (result["train_batch_size"], result["train_micro_batch_size_per_gpu"]) == (16, 1)
    assert result["gradient_accumulation_steps"] == 16 // WORLD
    assert result["gradient_clipping"] == 1.0
    assert result["bf16"]["enabled"] is True
    assert result["zero_optimization"] == {"stage": 2, "overlap_comm": False, "reduce_scatter": True}
    assert result["wall_clock_breakdown"] is True
    assert "auto" not in json.dumps(result)
    assert not {"fp16", "optimizer"} & set(result)


def test_batch_sizes_come_from_the_launched_group_and_clipping_is_always_written() -> None:
    recipe = load(RECIPE, ["strategy=deepspeed"])
    assert [build(recipe, world)["gradient_accumulation_steps"] for world in (1, 2, 4)] == [16, 8, 4]
    assert build(recipe, 1)["gradient_clipping"] == recipe.training.clip_norm


@pytest.mark.parametrize(
    ("values", "overrides", "message"),
    [
        ({"bfoat16": {"enabled": True}}, [], "did you mean 'bfloat16'"),
        ({"unheard_of": 1}, [], "'unheard_of' and would ignore it"),
        ({"fp16": True}, [], "fp16 is true, and must be an object"),
        ({"bf16": "auto"}, [], 'bf16 is "auto", and must be an object'),
        ({"zero_optimization": []}, ["strategy.stage=3", "strategy.offload_optimizer=nvme"], "must be an object"),
        ({"zero_optimization": {"offload_param": "cpu"}}, ["strategy.stage=3"], "must be an object"),
        ({"zero_optimization": {"offload_param": {"device": "disk"}}}, ["strategy.stage=3"], "cpu or nvme, not disk"),
        ({"zero_optimization": {"stage": True}}, [], "must be 1, 2 or 3, not true"),
        ('{"a": ' * 99999 + "1" + "}" * 99999, [], "nested too deeply"),
        ({"zero_optimization": {"stage": 0}}, [], "use strategy.name ddp"),
        ({"scheduler": {"type": "WarmupLR"}}, [], "section schedule"),
        ({"optimizer": {"params": {"momentum": 0.9}}}, [], "has no such key"),
        ({}, ["training.precision=float64"], "float64 does not exist in DeepSpeed"),
        ({}, ["strategy.offload_parameters=cpu"], "needs strategy.stage 3|zero_optimization.stage 3"),
        ({}, ["strategy.stage=3", "strategy.offload_optimizer=nvme"], "needs strategy.nvme_path"),
        ({}, ["strategy.stage=2", "strategy.offload_optimizer=nvme"], "needs strategy.stage 3"),
        ("{'a': 1}", [], "is not valid JSON"),
        ('{"a": 1, "a": 2}', [], "'a' is given twice"),
        ('{"gradient_clipping": NaN}', [], "NaN is not a number"),
        ("[]", [], "must hold a JSON object"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(
    tmp_path: Path, values: Any, overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(tmp_path, values, *overrides)


def test_a_missing_json_is_named_and_checking_needs_no_library() -> None:
    recipe = load(RECIPE, ["strategy=deepspeed", "strategy.deepspeed_config=/nowhere/ds.json"])
    with pytest.raises(ConfigError, match=r"cannot read /nowhere/ds\.json"):
        check(recipe, 1)


def test_zero_3_is_not_compiled() -> None:
    with pytest.raises(ConfigError, match=r"training\.compile.*choose ZeRO 1 or 2, or fsdp"):
        check(load(RECIPE, ["strategy={name: deepspeed, stage: 3}", "training.compile=true"]), 2)
    check(load(RECIPE, ["strategy={name: deepspeed, stage: 2}", "training.compile=true"]), 2)


def test_several_contradictions_are_all_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(tmp_path, {"train_batch_size": 1, "gradient_clipping": 7})
    assert len(str(caught.value).splitlines()) == 2


def test_offload_to_nvme_without_libaio_says_what_to_install(tmp_path: Path) -> None:
    if ranks.call(1, _has_libaio) == [True]:
        pytest.skip("libaio is here")
    more = ["strategy=deepspeed", "strategy.stage=3", "strategy.offload_optimizer=nvme"]
    with pytest.raises(ranks.RankFailed, match="libaio-dev"):
        ranks.train(1, RECIPE, [*more, f"strategy.nvme_path={tmp_path}", f"output_dir={tmp_path}"])


def _has_libaio() -> bool:
    from deepspeed.ops.op_builder import AsyncIOBuilder

    return bool(AsyncIOBuilder().is_compatible(verbose=False))


OUR_LINES = ("smoke", "a step is", "starts at", "step", "finished")


def test_deepspeed_starts_without_torchrun_builds_nothing_and_keeps_quiet(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    output = finish(start(command(0, f"output_dir={tmp_path}", "strategy=deepspeed", "strategy.offload_optimizer=cpu")))
    assert not (tmp_path / "extensions").exists()
    assert "INFO" not in output
    assert [line for line in output.splitlines() if not line.startswith(OUR_LINES)] == []


# ---- checkpoints

STEPS, SAVED = 6, 3
STRATEGIES = {
    "single": ["strategy=single"],
    "ddp": ["strategy=ddp"],
    "fsdp": ["strategy=fsdp"],
    "hsdp": ["strategy=hsdp"],
    **{f"zero{stage}": ["strategy=deepspeed", f"strategy.stage={stage}"] for stage in (1, 2, 3)},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The output folder of a run of six steps with a checkpoint at step 3; each combination is run once."""
    base = tmp_path_factory.mktemp("trained")

    def train(name: str, world: int, *more: str) -> Path:
        output = base / "-".join([name, str(world), *more]).replace("/", "_")
        if not output.exists():
            run(name, world, output, *more)
        return output

    return train


def run(name: str, world: int, output: Path, *more: str) -> None:
    same = [f"output_dir={output}", "optimizer.learning_rate=1e-2", "training.clip_norm=0.5"]
    ranks.train(world, RECIPE, [*same, *STRATEGIES[name], *more])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("zero1", 2), ("zero1", 2)),
        (("zero3", 2), ("zero3", 2)),
        (("zero1", 2), ("zero3", 1)),
        (("zero3", 1), ("zero2", 2)),
        (("zero2", 2), ("fsdp", 2)),
        (("zero3", 2), ("single", 1)),
        (("ddp", 2), ("zero1", 1)),
        (("fsdp", 2), ("zero3", 2)),
        (("single", 1), ("zero2", 2)),
    ],
    ids=lambda part: f"{part[0]}-{part[1]}",
)
def test_weights_and_moments_go_from_any_strategy_and_world_to_any_other(
    trained: Any, tmp_path: Path, before: tuple[str, int], after: tuple[str, int]
) -> None:
    whole = trained(*before)
    half = tmp_path / "half"
    shutil.copytree(whole / "checkpoints", half / "checkpoints")
    shutil.rmtree(half / "checkpoints" / f"step-{STEPS:08}")
    run(*after, half)
    assert events(half, "resume")[0]["step"] == SAVED
    for key in ("loss", "gradient_norm"):
        expected = numbers(whole, key)[SAVED:]
        # The same strategy and world: to the bit. Moments that were lost would show in the first digits.
        assert numbers(half, key) == (expected if before == after else pytest.approx(expected, rel=1e-5))


def test_three_legs_under_three_strategies_give_the_losses_of_one_run(trained: Any, tmp_path: Path) -> None:
    more = ["training.steps=9", "schedule.kind=constant", "training.evaluate_every=100"]
    for steps, name in ((3, "zero3"), (6, "hsdp"), (9, "zero1")):
        run(name, 2, tmp_path, *more, f"training.steps={steps}")
    assert [line["step"] for line in events(tmp_path, "resume")] == [3, 6]
    for key in ("loss", "gradient_norm"):
        assert numbers(tmp_path, key) == pytest.approx(numbers(trained("ddp", 2, *more), key), rel=1e-4)


@pytest.mark.parametrize("name", ["zero2", "zero3"])
def test_offload_to_host_memory_changes_nothing_also_after_a_resume(trained: Any, tmp_path: Path, name: str) -> None:
    offload = ["strategy.offload_optimizer=cpu"] + (["strategy.offload_parameters=cpu"] if name == "zero3" else [])
    expected = numbers(trained(name, 2), "loss")
    whole = trained(name, 2, *offload)
    assert numbers(whole, "loss") == pytest.approx(expected, rel=1e-6)
    half = tmp_path / "half"
    shutil.copytree(whole / "checkpoints", half / "checkpoints")
    shutil.rmtree(half / "checkpoints" / f"step-{STEPS:08}")
    run(name, 2, half, *offload)
    assert numbers(half, "loss") == pytest.approx(expected[SAVED:], rel=1e-6)


def test_state_in_bf16_keeps_full_precision(trained: Any, tmp_path: Path) -> None:
    """What is saved is the float32 weights, not the bf16 ones of the forward pass."""
    for name in ("zero1", "zero2", "zero3"):
        whole = trained(name, 2, "training.precision=bf16")
        half = tmp_path / name
        shutil.copytree(whole / "checkpoints", half / "checkpoints")
        shutil.rmtree(half / "checkpoints" / f"step-{STEPS:08}")
        run(name, 2, half, "training.precision=bf16")
        assert numbers(half, "loss") == numbers(whole, "loss")[SAVED:]
