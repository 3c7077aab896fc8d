"""What is decided before a run starts: the ranks that were launched, and that all of them were told the same."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer import ranks
from tests.trainer.conftest import RECIPE, Start, command, finish, free_port
from trainer.__main__ import main
from trainer.errors import ConfigError
from trainer.launched import launched

JOINING = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def _with_one_difference(override: str, output: Path) -> None:
    more = [override] if os.environ["RANK"] == "1" else []
    ranks.trainer(RECIPE, f"output_dir={output}/{os.environ['RANK']}", "strategy=ddp", "training.steps=1", *more)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.learning_rate=1e-2", "optimizer.learning_rate is 0.01 on rank 1 on "),
        ("training.precision=bf16", "training.precision is bf16 on rank 1 on "),
        ("training.global_batch_size=32", "training.global_batch_size is 32 on rank 1 on "),
        ("resume=never", "resume is never on rank 1 on "),
        ("model={huggingface: x}", "model.heads is None on rank 1 on "),
    ],
)
def test_a_recipe_that_differs_on_one_rank_is_refused_on_all(tmp_path: Path, override: str, message: str) -> None:
    for ended in ranks.outcomes(2, _with_one_difference, override, tmp_path):
        assert ended.exit_code == ConfigError.exit_code, ended.output
        assert message in ended.output
        assert "give all ranks the same recipe" in ended.output


def test_paths_of_their_own_are_no_difference(tmp_path: Path) -> None:
    for ended in ranks.outcomes(2, _with_one_difference, "watch.notice_file=/nowhere", tmp_path):
        assert ended.exit_code == 0, ended.output


def _with_gpus_on_one_rank(output: Path) -> None:
    import torch

    if os.environ["RANK"] == "1":
        torch.cuda.is_available = lambda: True
        torch.cuda.device_count = lambda: 2
        torch.cuda.set_device = lambda _: None
    ranks.trainer(RECIPE, f"output_dir={output}", "strategy=ddp")


def _with_an_interface_that_is_not_there_on_one_rank(output: Path) -> None:
    if os.environ["RANK"] == "1":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo,^docker0"
    ranks.trainer(RECIPE, f"output_dir={output}", "strategy=ddp")


@pytest.mark.parametrize(
    ("started", "messages"),
    [
        (_with_gpus_on_one_rank, ["rank 0 runs on cpu on ", "rank 1 on cuda on "]),
        (
            _with_an_interface_that_is_not_there_on_one_rank,
            [
                "rank 1 on ",
                "GLOO_SOCKET_IFNAME names '^docker0', and there is no such network interface",
                "one of lo",
            ],
        ),
    ],
)
def test_a_node_that_the_others_would_wait_for_is_refused_on_all_ranks(
    tmp_path: Path, started: Callable[[Path], None], messages: list[str]
) -> None:
    for ended in ranks.outcomes(2, started, tmp_path):
        assert ended.exit_code == ConfigError.exit_code, ended.output
        for message in messages:
            assert message in ended.output


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"WORLD_SIZE": "2"}, "the environment has WORLD_SIZE 2 but no RANK and no MASTER_ADDR and no MASTER_PORT"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "has RANK 0 and WORLD_SIZE 2 but no MASTER_ADDR and no MASTER_PORT"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two', not a whole number"),
    ],
)
def test_a_world_without_a_way_into_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], message: str
) -> None:
    for name in JOINING:
        monkeypatch.delenv(name, raising=False)
    assert (launched().world, launched().joins) == (1, False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        launched()


# ---- worlds that don't divide


@pytest.mark.parametrize(
    ("world", "overrides", "message"),
    [
        (2, ["training.global_batch_size=15"], "multiple of 2, for example 16, or start 1 or 3 ranks"),
        (3, [], "multiple of 3, for example 18, or start 2 or 4 ranks"),
        (4, ["training.micro_batch_size=3"], "training.micro_batch_size to one of 1, 2, 4."),
        (4, ["training.global_batch_size=2"], "multiple of 4, for example 4, or start 2 ranks"),
        (4, ["strategy=hsdp", "strategy.replicate=3"], "choose one of 1, 2, 4"),
        (2, ["strategy=single"], "'single' takes one process, not 2"),
    ],
)
def test_a_world_that_cannot_be_is_refused_before_torch_is_imported(
    world: int, overrides: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "trainer.train", None)  # importing it would be an ImportError
    monkeypatch.setenv("WORLD_SIZE", str(world))
    assert main([str(RECIPE), *(word for item in overrides for word in ("--set", item))]) == ConfigError.exit_code
    assert message in capsys.readouterr().err


def test_an_elastic_launch_whose_world_does_not_divide_ends_with_the_choices(start: Start, tmp_path: Path) -> None:
    launcher = ["--nnodes=1:2", "--nproc-per-node=3", "--rdzv-backend=c10d", "--rdzv-id=elastic", "--max-restarts=1"]
    launcher += [f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-conf=is_host=1,last_call_timeout=1"]
    launcher += ["--local-addr=127.0.0.1", "--monitor-interval=0.2"]
    output = finish(start(command(3, f"output_dir={tmp_path / 'run'}", launcher=launcher)), code=1)
    assert "world size 3" in output
    assert "or start 2 or 4 ranks" in output
    assert not (tmp_path / "run").exists()
