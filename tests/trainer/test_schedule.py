"""The series of learning rates: the right values at every edge."""

import math
from itertools import pairwise

import pytest

from tests.trainer.conftest import RECIPE
from trainer.config import ScheduleSection
from trainer.errors import ConfigError
from trainer.recipe_file import load
from trainer.schedule import learning_rate, share_of_peak

KINDS = ["cosine", "linear", "constant", "warmup-stable-decay"]


def series(kind: str, *, steps: int, warmup: int = 0, final: float = 0.1) -> list[float]:
    schedule = ScheduleSection.model_validate({"kind": kind, "warmup_steps": warmup, "final_share": final})
    return [share_of_peak(schedule, step, steps) for step in range(1, steps + 1)]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("cosine", [0.5, 1.0, 0.1 + 0.45 * (1 + math.cos(math.pi / 4)), 0.55, 0.1 + 0.45 * (1 - math.sqrt(0.5)), 0.1]),
        ("linear", [0.5, 1.0, 0.775, 0.55, 0.325, 0.1]),
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("warmup-stable-decay", [0.5, 1.0, 1.0, 1.0, 1.0, 0.1]),
    ],
)
def test_warm_up_and_decay(kind: str, expected: list[float]) -> None:
    assert series(kind, steps=6, warmup=2) == pytest.approx(expected)


def test_the_stable_part_ends_where_the_decay_begins() -> None:
    assert series("warmup-stable-decay", steps=20, warmup=4, final=0.0)[14:] == pytest.approx(
        [1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (1, 1), (1, 5), (2, 1), (10, 0), (10, 10), (10, 25), (10, 9)])
def test_every_edge_gives_rates_that_rise_once_and_then_never_again(kind: str, steps: int, warmup: int) -> None:
    rates = series(kind, steps=steps, warmup=warmup)
    assert all(0 < rate <= 1 for rate in rates)
    peak = min(warmup, steps)
    assert all(after > before for before, after in pairwise(rates[:peak]))
    assert all(after <= before for before, after in pairwise(rates[max(0, peak - 1) :]))
    if warmup >= steps:
        assert rates[-1] == pytest.approx(steps / warmup)
    elif kind != "constant":
        assert rates[-1] == pytest.approx(0.1)


def test_accumulation_does_not_change_the_series() -> None:
    batches = [["training.micro_batch_size=1"], ["training.micro_batch_size=4"]]
    first, second = ([learning_rate(load(RECIPE, keys), step) for step in range(1, 7)] for keys in batches)
    assert first == second


@pytest.mark.parametrize(
    ("text", "seconds"), [("55m", 3300), ("1h30m", 5400), ("90s", 90), ("2d", 172800), ("1.5e2", 150), ("20", 20)]
)
def test_a_duration_is_written_like_a_person_would(text: str, seconds: float) -> None:
    assert load(RECIPE, [f"watch.max_duration={text}"]).watch.max_duration == seconds


@pytest.mark.parametrize("text", ["soon", "5 minutes", "0s", "-3", "m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"watch\.max_duration"):
        load(RECIPE, [f"watch.max_duration={text}"])
