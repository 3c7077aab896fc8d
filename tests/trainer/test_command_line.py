"""The command line explains itself: each verb shows an example, and each key of a recipe says what it means."""

import json

import pytest

from trainer import __main__ as command_line
from trainer.keys import keys


@pytest.mark.parametrize("words", [[], *([verb] for verb in command_line.VERBS)])
def test_every_help_has_an_example(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.main([*words, "--help"])
    assert ended.value.code == 0
    assert "example: " in capsys.readouterr().out


def test_every_key_has_a_meaning_and_a_name_of_its_own() -> None:
    found = {key.name: key for key in keys()}
    assert len(found) == len(keys())
    assert [name for name, key in found.items() if not key.meaning] == []
    assert found["training.steps"].default is None
    assert found["training.steps"].holds == "whole number from 1"
    assert json.loads(found["optimizer.betas"].default or "") == [0.9, 0.95]
    assert found["model.module"].default is None
    assert found["strategy.offload_optimizer"].holds == "none | cpu | nvme or null"


def test_keys_are_found_by_a_part_of_their_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["keys", "checkpoint.keep"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "checkpoint.keep",
        "checkpoint.keep_every_steps",
        "checkpoint.keep_best",
    ]
    assert command_line.main(["keys", "no_such_key"]) == 2
    assert "python -m trainer keys lists all" in capsys.readouterr().err
