"""The law: same seed and global batch, same losses, however the work is divided.

`make test` draws a few combinations; `make parity` goes through all of them.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as draw

from tests.trainer import ranks
from tests.trainer.conftest import RECIPE, numbers

pytestmark = pytest.mark.ranks_import(
    "deepspeed.runtime.zero.muon.muon_optimizer", "trainer.strategies.deepspeed"
)  # deepspeed.initialize imports the first, and with it a compiler

STEPS = 50
BATCH = 40  # divides by every world size × accumulation below
CLIP = 0.5  # below every gradient norm of these runs, so that clipping counts
# Relative. Sums over ranks and micro-batches have another order; bf16 besides rounds activations at other places.
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "bf16": 1e-2}

TORCH = ["ddp", "fsdp", "hsdp"]
ZERO = ["deepspeed 1", "deepspeed 2", "deepspeed 3"]
OPTIONS = {
    "ddp": ["", "training.activation_checkpointing=true"],
    "fsdp": ["", "training.activation_checkpointing=true", "reshard_after_forward=false", "cpu_offload=true"],
    "hsdp": ["", "replicate=2"],
    "deepspeed 1": ["", "offload_optimizer=cpu"],
    "deepspeed 2": ["", "offload_optimizer=cpu", "training.activation_checkpointing=true"],
    "deepspeed 3": ["", "offload_optimizer=cpu", "offload_parameters=cpu"],
}


COMPILED = "training.compile=true"
COMPILED_CASES = {  # the whole model, or each block where a strategy shards parameters
    "single": [COMPILED, f"{COMPILED} training.activation_checkpointing=true"],
    "ddp": [COMPILED],
    "fsdp": [COMPILED, f"{COMPILED} training.activation_checkpointing=true"],
    "hsdp": [COMPILED],
    "deepspeed 1": [COMPILED],
    "deepspeed 2": [COMPILED],
}


@dataclass(frozen=True)
class Case:
    """strategy: a name, or a name and a ZeRO stage; option: more keys, of section `strategy` unless they name one."""

    strategy: str = "single"
    option: str = ""
    world: int = 1
    accumulation: int = 1
    precision: str = "float32"
    seed: int = 0

    def overrides(self) -> list[str]:
        name, _, stage = self.strategy.partition(" ")
        return [
            f"strategy={name}",
            *([f"strategy.stage={stage}"] if stage else []),
            *(key if "." in key else f"strategy.{key}" for key in self.option.split()),
            f"training.micro_batch_size={BATCH // self.world // self.accumulation}",
            f"training.precision={self.precision}",
            f"seed={self.seed}",
        ]


Run = Callable[[Case], list[float]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Trains a case and returns its losses and gradient norms; a case that was run before is not run again."""
    base = tmp_path_factory.mktemp("parity")
    documents = base / "documents"
    documents.mkdir()
    for number in range(300):  # of many lengths, so that samples hold unequal numbers of targets that count
        (documents / f"{number:03}.txt").write_text(f"document {number} " * (1 + number * number % 7))
    known: dict[Case, list[float]] = {}

    def train(case: Case) -> list[float]:
        output = base / f"run-{len(list(base.iterdir()))}"
        same = [
            f"output_dir={output}",
            f"data={{source: path, path: {documents}, sequence_length: 16}}",
            f"training.steps={STEPS}",
            f"training.global_batch_size={BATCH}",
            f"training.clip_norm={CLIP}",
            f"training.log_every={STEPS}",
            f"training.evaluate_every={STEPS}",
            f"checkpoint.every_steps={STEPS}",
        ]
        ranks.train(case.world, RECIPE, [*same, *case.overrides()])
        assert len(set(numbers(output, "tokens"))) > 1
        norms = numbers(output, "gradient_norm")
        assert min(norms) > CLIP
        return numbers(output, "loss") + norms

    def remembered(case: Case) -> list[float]:
        if case not in known:
            known[case] = train(case)
        return known[case]

    remembered.afresh = train  # type: ignore[attr-defined]
    return remembered


def assert_equal_maths(run: Run, case: Case) -> None:
    reference = Case(precision=case.precision, seed=case.seed)
    assert run(case) == pytest.approx(run(reference), rel=TOLERANCE[case.precision])


def possible(case: Case) -> bool:
    if case.strategy == "single":
        return case.world == 1 and not case.option
    if case.strategy.startswith("deepspeed") and case.precision == "float64":
        return False  # DeepSpeed has no float64: it is held to float32's tolerance
    return case.option != "replicate=2" or case.world > 1


@draw.composite
def cases(pick: draw.DrawFn, strategies: list[str], precisions: list[str]) -> Case:
    strategy = pick(draw.sampled_from(strategies))
    return Case(
        strategy,
        option=pick(draw.sampled_from(OPTIONS.get(strategy, [""]))),
        world=pick(draw.sampled_from([1, 2, 4])),
        accumulation=pick(draw.sampled_from([1, 2, 5])),
        precision=pick(draw.sampled_from(precisions)),
        seed=pick(draw.sampled_from([0, 1])),
    )


def sample(count: int) -> settings:
    """The same few combinations each time: a failure is seen by all. No shrinking: it would train for minutes."""
    return settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@sample(4)
@example(case=Case(accumulation=5, precision="float64"))
@example(case=Case("hsdp", "replicate=2", world=4, accumulation=2, precision="float64"))
@example(case=Case("fsdp", "training.activation_checkpointing=true", world=2, accumulation=5, precision="float64"))
@given(case=cases(TORCH, ["float64"]).filter(possible))
def test_losses_do_not_depend_on_how_the_work_is_divided(run: Run, case: Case) -> None:
    assert_equal_maths(run, case)


@sample(2)
@example(case=Case("deepspeed 3", world=4))
@example(case=Case("deepspeed 3", "offload_parameters=cpu", world=2, accumulation=2))
@example(case=Case("deepspeed 2", "training.activation_checkpointing=true", world=2, accumulation=5))
@given(case=cases(ZERO, ["float32"]).filter(possible))
def test_losses_under_deepspeed_are_those_of_one_process(run: Run, case: Case) -> None:
    assert_equal_maths(run, case)


@sample(1)
@example(case=Case("fsdp", world=2, accumulation=2, precision="bf16"))
@example(case=Case("deepspeed 3", world=2, accumulation=2, precision="bf16"))
@example(case=Case("deepspeed 1", accumulation=5, precision="bf16"))
@given(case=cases([*TORCH, *ZERO], ["bf16"]).filter(possible))
def test_losses_in_bf16_stay_in_their_band(run: Run, case: Case) -> None:
    assert_equal_maths(run, case)


def test_compiled_the_losses_are_the_same(run: Run) -> None:
    option = COMPILED_CASES["fsdp"][1]
    assert_equal_maths(run, Case("fsdp", option, world=2, accumulation=5, precision="float64"))


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("strategy", "option"), [(strategy, option) for strategy, options in COMPILED_CASES.items() for option in options]
)
def test_compiled_the_losses_are_the_same_for_all(run: Run, strategy: str, option: str) -> None:
    for precision in ("float32", "bf16") if strategy.startswith("deepspeed") else ("float64", "float32", "bf16"):
        for world in [1] if strategy == "single" else [1, 2]:
            assert_equal_maths(run, Case(strategy, option, world, 2, precision))


@pytest.mark.parametrize("strategy", ["fsdp", "deepspeed 2"])
def test_the_same_run_twice_is_equal_to_the_bit(run: Run, strategy: str) -> None:
    case = Case(strategy, world=2, accumulation=2)
    assert run(case) == run.afresh(case)  # type: ignore[attr-defined]


@pytest.mark.sweep
@pytest.mark.parametrize("precision", ["float64", "float32", "bf16"])
@pytest.mark.parametrize("strategy", ["single", *TORCH, *ZERO])
def test_the_whole_sweep(run: Run, strategy: str, precision: str) -> None:
    if strategy.startswith("deepspeed") and precision == "float64":
        pytest.skip("DeepSpeed has no float64")
    for option, world, accumulation, seed in itertools.product(
        OPTIONS.get(strategy, [""]), [1, 2, 4], [1, 2, 5], [0, 1]
    ):
        case = Case(strategy, option, world, accumulation, precision, seed)
        if possible(case):
            assert_equal_maths(run, case)
            if precision == "float32" and accumulation == 2:
                assert run(case) == run.afresh(case)  # type: ignore[attr-defined]
