"""Recipes with the user's own model, data and loss: the shipped examples, and what holds for any such file."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader

from tests.trainer import ranks
from tests.trainer.conftest import ROOT, events, numbers
from trainer.config import Recipe
from trainer.errors import ConfigError
from trainer.footprint import Measured
from trainer.recipe_file import load

VISION = ROOT / "examples" / "vision" / "recipe.yaml"
LORA = ROOT / "examples" / "lora" / "recipe.yaml"
FIXED_RATE = ("schedule.warmup_steps=0", "schedule.final_share=1")


def run(recipe: Path, output: Path, *overrides: str, world: int) -> Path:
    ranks.train(world, recipe, [f"output_dir={output}", "training.log_every=100", *overrides])
    return output


def saved_names(output: Path, step: int) -> set[str]:
    folder = output / "checkpoints" / f"step-{step:08d}"
    return set(FileSystemReader(folder).read_metadata().state_dict_metadata)


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # from where the examples' paths are meant


def test_the_vision_example_learns(tmp_path: Path) -> None:
    run(VISION, tmp_path, "training.steps=60", "training.evaluate_every=60", "strategy=ddp", world=2)
    (evaluation,) = events(tmp_path, "eval")
    assert evaluation["loss"] < 1.2  # knowing nothing of four classes costs 1.386


def test_the_vision_example_goes_on_under_another_strategy_as_if_nothing_had_happened(tmp_path: Path) -> None:
    short = (*FIXED_RATE, "training.global_batch_size=16", "training.evaluation_batches=1", "checkpoint.every_steps=2")
    one = run(
        VISION, tmp_path / "one", *short, "strategy=single", "training.micro_batch_size=16", "training.steps=4", world=1
    )
    two = tmp_path / "two"
    run(VISION, two, *short, "strategy=ddp", "training.micro_batch_size=4", "training.steps=2", world=2)
    run(VISION, two, *short, "strategy=fsdp", "training.micro_batch_size=8", "training.steps=4", world=2)
    assert events(two, "resume")[0]["step"] == 2
    for key in ("loss", "gradient_norm"):
        assert numbers(two, key) == pytest.approx(numbers(one, key), rel=1e-4)
    assert events(two, "eval")[-1]["loss"] == pytest.approx(events(one, "eval")[-1]["loss"], rel=1e-4)


@pytest.mark.ranks_import("peft")
def test_lora_trains_and_saves_adapters_only(tmp_path: Path) -> None:
    short = ("training.evaluation_batches=1", "checkpoint.every_steps=10", *FIXED_RATE)
    run(LORA, tmp_path, *short, "strategy=fsdp", "training.steps=20", world=2)
    losses = numbers(tmp_path, "loss")
    assert losses[-1] < losses[0] - 0.2
    names = saved_names(tmp_path, 20)
    weights = {name for name in names if name.startswith("model.")}
    moments = {name for name in names if name.startswith("optimizer.state.") and name.endswith(".exp_avg")}
    assert len(weights) == len(moments) == 2 * 4 * 2  # layers × adapted projections × (A, B)
    assert all("lora_" in name for name in weights | moments)
    run(LORA, tmp_path, *short, "strategy=single", "training.steps=21", world=1)
    assert events(tmp_path, "resume")[0]["step"] == 20
    assert numbers(tmp_path, "loss")[-1] < losses[0] - 0.2


def test_the_examples_footprints_are_known() -> None:
    for path in (VISION, LORA):
        found, notes = Measured(load(path)).footprints(ranks=2, per_node=8)
        assert not notes
        assert all(one.activations for one in found)
    adapters = next(one for one in found if one.strategy == "ddp")
    assert adapters.gradients < adapters.parameters / 5


UNEVEN = '''
import torch
from torch import nn

SAMPLES = 12

def build_model(config):
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

class Data:
    """Sample i has i % 4 targets that count; finite, so that it is begun again."""
    def __init__(self, rows, rank, world):
        self.rows, self.rank, self.world = rows, rank, world
    def __iter__(self):
        for first in range(self.rank * self.rows, SAMPLES, self.rows * self.world):
            yield {"samples": torch.arange(first, first + self.rows)}

def build_data(config, rank, world):
    return Data(config.training.micro_batch_size, rank, world)

def build_evaluation_data(config, rank, world):
    return list(Data(2, rank, world))[: 5 if world == 1 else 3 - rank]  # samples 0 to 9 in any world

def count(batch):
    return int((batch["samples"] % 4).sum())

def loss(model, batch):
    samples = batch["samples"]
    inputs = torch.stack([samples, samples.square() / 9, torch.ones_like(samples)], dim=1).float() / SAMPLES
    errors = (model(inputs)[:, 0] - samples.sin()).square()
    return (errors * (samples % 4)).sum(), count(batch)
'''

OWN = """
experiment: own
model: {module: MODULE}
data: {source: module}
training: {steps: 7, global_batch_size: 4, micro_batch_size: 4, evaluate_every: 7, evaluation_batches: 5}
optimizer: {learning_rate: 1.0e-2}
strategy: single
checkpoint: {every_steps: 4}
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(UNEVEN)
    (tmp_path / "own.yaml").write_text(OWN.replace("MODULE", str(tmp_path / "own.py")))
    return tmp_path / "own.yaml"


def test_unequal_counts_give_the_mean_over_all_targets_of_a_step(own: Path, tmp_path: Path) -> None:
    one = run(own, tmp_path / "one", *FIXED_RATE, world=1)
    two = tmp_path / "two"
    run(own, two, *FIXED_RATE, "strategy=ddp", "training.micro_batch_size=1", "training.steps=4", world=2)
    run(own, two, *FIXED_RATE, "strategy=fsdp", "training.micro_batch_size=2", world=2)  # resumes, without `start`
    assert numbers(two, "loss") == pytest.approx(numbers(one, "loss"), rel=1e-5)
    assert numbers(two, "gradient_norm") == pytest.approx(numbers(one, "gradient_norm"), rel=1e-4)
    assert numbers(two, "tokens") == [6] * 7
    scored, expected = (events(output, "eval")[-1]["loss"] for output in (two, one))
    assert scored == pytest.approx(expected, rel=1e-5)  # what pads the rank with fewer batches doesn't count


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("return Data(config.training", "return iter([]) or Data(config.training", "is empty or ends for good"),
        (
            "return Data(config",
            "return Data(config.trainig.x, 0, 1)\n    Data(config",
            "own.py line 19, in build_data: Attr",
        ),
        ("range(self.rank", "range(None", "own.py line 15, in build_data: TypeError"),
        ("def build_data", "def build_date", "has no function build_data"),
        ("return nn.Sequential(", "return (", "build_model in"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_place(
    own: Path, tmp_path: Path, old: str, new: str, message: str
) -> None:
    module = tmp_path / "own.py"
    assert old in module.read_text()
    module.write_text(module.read_text().replace(old, new))
    with pytest.raises(ranks.RankFailed) as caught:
        run(own, tmp_path / "out", world=1)
    assert message in str(caught.value)


def test_own_data_needs_an_own_model() -> None:
    with pytest.raises(ConfigError, match=r"means the file of model\.module"):
        load(VISION, ["model={preset: llama-1m}"])


def test_options_on_the_command_line_are_read_as_yaml() -> None:
    def options(*overrides: str) -> Any:
        recipe: Recipe = load(VISION, overrides)
        return recipe.model.model_dump()["options"]

    changed = options(
        "model.options.width=64",
        "model.options.rate=1e-3",
        "model.options.names=[a, b]",
        "model.options.layers=[2, .5, 0123]",
    )
    assert (changed["width"], changed["rate"], changed["names"], changed["blocks"]) == (64, 0.001, ["a", "b"], 2)
    assert changed["layers"] == [2, 0.5, "0123"]
    assert options("model.options.kind=plain", "model.options.on=true")["kind"] == "plain"
    assert options("model.options.on=true")["on"] is True


def test_the_samples_of_the_vision_example_do_not_depend_on_the_number_of_ranks() -> None:
    from trainer.models.user_code import UserCode

    code, recipe = UserCode(ROOT / "examples/vision/model.py"), load(VISION, ["training.micro_batch_size=2"])

    def images(world: int) -> torch.Tensor:
        worlds = [iter(code.call("build_data", recipe, rank, world, 8)) for rank in range(world)]
        return torch.cat([next(rank)[0] for _ in range(4 // world) for rank in worlds])

    assert torch.equal(images(1), images(2))


def test_a_model_that_differs_between_ranks_is_refused_on_all(own: Path, tmp_path: Path) -> None:
    """Sharded, ranks would mix it up without an error, or wait for each other."""
    module = tmp_path / "own.py"
    other = "import os\n    return nn.Sequential(nn.Linear(3, 8 + int(os.environ['RANK'])), "
    module.write_text(module.read_text().replace("return nn.Sequential(nn.Linear(3, 8), ", other))
    overrides = [f"output_dir={tmp_path / 'out'}", "strategy=fsdp", "training.micro_batch_size=1"]
    for ended in ranks.outcomes(2, ranks.trainer, own, *overrides):
        assert ended.exit_code == ConfigError.exit_code, ended.output
        assert "rank 1 built other parameters than rank 0" in ended.output


def test_ranks_that_read_the_same_samples_are_told(own: Path, tmp_path: Path) -> None:
    module = tmp_path / "own.py"
    overrides = ["strategy=ddp", "training.micro_batch_size=1", "training.steps=1"]
    first, _ = ranks.outcomes(2, ranks.trainer, own, f"output_dir={tmp_path / 'divided'}", *overrides)
    assert "the same first micro-batch" not in first.output
    alike = "Data(config.training.micro_batch_size, 0, 1)"
    module.write_text(module.read_text().replace("Data(config.training.micro_batch_size, rank, world)", alike))
    first, _ = ranks.outcomes(2, ranks.trainer, own, f"output_dir={tmp_path / 'alike'}", *overrides)
    assert "build_data gave ranks 0 and 1 the same first micro-batch" in first.output
    assert first.exit_code == 0


ONLY_ON_RANK_1 = "import os\n    if os.environ['RANK'] == '1': raise ValueError('not on this node')\n"


@pytest.mark.parametrize("function", ["build_model(config)", "build_data(config, rank, world)", "loss(model, batch)"])
def test_what_fails_on_one_rank_alone_ends_all_with_its_error(own: Path, tmp_path: Path, function: str) -> None:
    """Sharded, so that the other rank waits for it inside the user's own functions too."""
    module = tmp_path / "own.py"
    module.write_text(module.read_text().replace(f"def {function}:\n", f"def {function}:\n    {ONLY_ON_RANK_1}"))
    overrides = [f"output_dir={tmp_path / 'out'}", "strategy=fsdp", "training.micro_batch_size=1"]
    healthy, guilty = ranks.outcomes(2, ranks.trainer, own, *overrides)
    name = function.partition("(")[0]
    assert f", in {name}: ValueError: not on this node; correct the file." in guilty.output
    assert guilty.output.strip() in healthy.output
    assert "rank 1 on " in healthy.output
    assert "Traceback" not in healthy.output + guilty.output
    assert healthy.exit_code == guilty.exit_code == 1


def test_an_evaluation_that_fails_at_its_first_use_on_one_rank_ends_all(own: Path, tmp_path: Path) -> None:
    module = tmp_path / "own.py"
    late = "def build_evaluation_data(config, rank, world):\n"
    module.write_text(module.read_text().replace(late, late + "    if rank: raise ValueError('not on this node')\n"))
    overrides = [f"output_dir={tmp_path / 'out'}", "strategy=ddp", "training.micro_batch_size=1"]
    for ended in ranks.outcomes(2, ranks.trainer, own, *overrides):
        assert ended.exit_code == 1
        assert "in build_evaluation_data: ValueError: not on this node; correct the file." in ended.output
        assert "Traceback" not in ended.output


@pytest.mark.ranks_import("peft", "deepspeed.runtime.zero.muon.muon_optimizer", "trainer.strategies.deepspeed")
def test_lora_goes_from_zero_3_to_zero_2_and_its_frozen_weights_stay(tmp_path: Path) -> None:
    """Frozen weights are in no checkpoint: a start builds the same ones. Were they changed, the losses would tell."""
    short = (
        "training.evaluate_every=100",
        "training.evaluation_batches=1",
        "training.global_batch_size=8",
        *FIXED_RATE,
    )
    one = run(LORA, tmp_path / "one", *short, "strategy=ddp", "training.steps=5", world=2)
    two = tmp_path / "two"
    for steps, stage in ((3, 3), (5, 2)):
        zero = ("strategy=deepspeed", f"strategy.stage={stage}")
        run(LORA, two, *short, *zero, f"training.steps={steps}", world=2)
    assert events(two, "resume")[0]["step"] == 3
    assert numbers(two, "loss") == pytest.approx(numbers(one, "loss"), rel=1e-4)
    assert saved_names(two, 5) == saved_names(one, 5)
