"""Losses are sums over the targets that count: in parts or whole, the trainer's own or the user's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from trainer.data.batches import IGNORED
from trainer.errors import ConfigError, TrainerError
from trainer.loss import count, cross_entropy_sum, loss_sum, user_count, user_loss_sum
from trainer.models.user_code import UserCode

CPU = torch.device("cpu")
MODEL = "def build_model(config):\n    from torch import nn\n    return nn.Linear(3, 1)\n"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_loss_in_parts_is_the_whole_loss(dtype: torch.dtype) -> None:
    logits = torch.randn(3, 7, 50, dtype=dtype)
    targets = torch.randint(0, 50, (3, 7))
    targets[1, 2:6] = IGNORED

    def run(chunk: int) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = logits.clone().requires_grad_()
        loss = cross_entropy_sum(leaf, targets, chunk=chunk)
        loss.backward()
        assert leaf.grad is not None
        return loss.detach(), leaf.grad

    whole, gradient = run(2**24)
    assert whole.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    plain = functional.cross_entropy(logits.flatten(0, 1).to(whole.dtype), targets.flatten(), reduction="sum")
    torch.testing.assert_close(whole, plain)
    for chunk in (1, 50 * 4, 50 * 21 - 1):  # one row at a time; uneven parts; a last part of one row
        loss, part = run(chunk)
        torch.testing.assert_close(loss, whole)
        torch.testing.assert_close(part, gradient)


def test_the_widened_logits_of_a_loss_in_parts_are_not_kept() -> None:
    logits = torch.randn(64, 500, dtype=torch.bfloat16, requires_grad=True)
    kept = 0

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += tensor.nbytes * (tensor.dtype == torch.float32)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        cross_entropy_sum(logits, torch.zeros(64, dtype=torch.int64), chunk=4 * 500)
    assert kept < 64 * 500


def test_a_language_model_may_return_logits_or_an_object_that_holds_them() -> None:
    class Wrapped(nn.Module):
        def forward(self, tokens: torch.Tensor) -> Any:
            return type("Output", (), {"logits": functional.one_hot(tokens, 5).float()})()

    tokens = np.array([[1, 2], [3, 4]])
    targets = np.array([[1, IGNORED], [0, 4]])
    total, number = loss_sum(Wrapped(), (tokens, targets), CPU)
    other, _ = loss_sum(_OneHot(), (tokens, targets), CPU)
    assert number == 3
    assert total == other


class _OneHot(nn.Module):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return functional.one_hot(tokens, 5).float()


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ((np.zeros((2, 3)), np.array([[1, IGNORED, 2], [IGNORED, IGNORED, 0]])), 3),
        ((torch.zeros(4, 3), torch.tensor([1, 0, IGNORED, 1])), 3),
        ((torch.zeros(4, 3), torch.zeros(4, 2)), 4),  # targets that are measured, not chosen
        ({"pixels": torch.zeros(5, 3, dtype=torch.bfloat16), "labels": torch.zeros(5, dtype=torch.int32)}, 5),
        ({"pixels": torch.zeros(5, 3)}, 5),
        (torch.zeros(6, 2), 6),
    ],
)
def test_the_targets_of_a_batch_are_counted(batch: Any, expected: int) -> None:
    assert count(batch) == expected


def code(tmp_path: Path, text: str) -> UserCode:
    path = tmp_path / "own.py"
    path.write_text(MODEL + text)
    return UserCode(path)


BATCH = (torch.arange(12.0).reshape(4, 3), torch.ones(4, 1))


def test_a_mean_and_a_sum_with_its_count_are_the_same_loss(tmp_path: Path) -> None:
    own = code(
        tmp_path,
        "def loss(model, batch):\n    inputs, targets = batch\n    return (model(inputs) - targets).square().mean()\n",
    )
    summed = code(
        tmp_path,
        "def loss(model, batch):\n"
        "    inputs, targets = batch\n"
        "    return (model(inputs) - targets).square().sum(), len(targets)\n",
    )
    model = nn.Linear(3, 1)
    first, number = user_loss_sum(own)(model, BATCH, CPU)
    second, same = user_loss_sum(summed)(model, BATCH, CPU)
    torch.testing.assert_close(first, second)
    assert number == same == 4


def test_a_module_without_a_loss_trains_a_language_model(tmp_path: Path) -> None:
    assert user_loss_sum(code(tmp_path, "")) is loss_sum


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "def loss(model, batch):\n    return model(batch[0]).sum(), 3\n",
            "in loss: it counted 3 targets where the batch has 4",
        ),
        ("def loss(model, batch):\n    return 1.5\n", "must return a tensor with one value"),
        ("def loss(model, batch):\n    return model(batch[0])\n", "must return a tensor with one value"),
        (
            "def count(batch):\n    return 0\ndef loss(model, batch):\n    return model(batch[0]).mean()\n",
            "a batch has no targets",
        ),
        (
            "def loss(model, batch):\n    return helper(batch)\ndef helper(batch):\n    return batch['x']\n",
            "own.py line 7, in loss: TypeError",
        ),
        (
            "def loss(model, batch):\n    return model(batch[0]).sum(), 'four'\n",
            "the number of targets is 'four'",
        ),
        (
            "def loss(model, batch):\n    return model(batch[0]).mean().detach()\n",
            "line 4, in loss: the loss doesn't",
        ),
        ("def loss(model, batch):\n    raise SystemExit(3)\n", "own.py line 5, in loss: SystemExit: 3"),
        ("def loss(model):\n    pass\n", "own.py line 4, in loss: TypeError"),
        (
            "def count(batch):\n    return -1\ndef loss(model, batch):\n    pass\n",
            "line 4, in count: the number",
        ),
        ("def count(batch):\n    return batch.x\ndef loss(model, batch):\n    pass\n", "own.py line 5, in count: Attr"),
    ],
)
def test_a_wrong_loss_is_refused_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TrainerError) as caught:
        user_loss_sum(code(tmp_path, text))(nn.Linear(3, 2), BATCH, CPU)
    assert message in str(caught.value)


def test_the_user_may_count_for_himself(tmp_path: Path) -> None:
    own = code(tmp_path, "def count(batch):\n    return 7\n")
    assert user_count(own)(BATCH) == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "has no function build_model"),
        ("import no_such_module\n", "own.py line 1, in import: ModuleNotFoundError: No module named"),
        ("def build_model(config:\n    pass\n", "own.py line 1: SyntaxError"),
        ("x = 1\0\n", "own.py: SyntaxError: source code string cannot contain null bytes"),
        ("import sys\nsys.exit(3)\n", "own.py line 2, in import: SystemExit: 3"),
        ("\n\nraise ValueError('a\\nb')\n", "own.py line 3, in import: ValueError: a b"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "own.py"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        UserCode(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file .*absent\.py"):
        UserCode(tmp_path / "absent.py")


def test_the_files_neighbours_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_own.py").write_text("from torch import nn\n")
    path = tmp_path / "own.py"
    path.write_text("from neighbour_of_own import nn\ndef build_model(config):\n    return nn.Linear(1, 1)\n")
    assert UserCode(path).has("build_model")
