"""JSON that every reader opens, and files of JSON that no Python can follow."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.conftest import RECIPE
from trainer import strict_json
from trainer.checkpoint.manifest import parse
from trainer.data import manifest
from trainer.data.storage import Folder
from trainer.errors import ConfigError, DataError
from trainer.initial_weights import initialise
from trainer.models.llama import Llama
from trainer.recipe_file import load

DEEP = '{"a": ' * 100_000 + "1" + "}" * 100_000


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_has_not_is_written_as_null(number: float) -> None:
    text = strict_json.encode({"loss": number, "all": [1.5, (number, 2)]})
    assert json.loads(text) == {"loss": None, "all": [1.5, [None, 2]]}


@pytest.mark.parametrize("text", ["NaN", '{"a": -Infinity}', DEEP, "[" * 500 + "]" * 500, '{"a": ', b"\xff\xfe{}x"])
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        strict_json.decode(text)


def test_a_hundred_levels_are_read() -> None:
    assert strict_json.decode(json.dumps(nested(99))) == nested(99)
    with pytest.raises(ValueError, match="nested too deeply"):
        strict_json.decode(json.dumps(nested(101)))


def test_a_dataset_whose_manifest_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(DEEP)
    with pytest.raises(DataError, match=r"manifest.json is not a manifest of token shards \(it is nested too deeply"):
        manifest.load(Folder(str(tmp_path)))


def test_a_checkpoint_whose_manifest_is_nested_too_deeply_is_damaged() -> None:
    with pytest.raises(ValueError, match="damaged"):
        parse(DEEP.encode())


def test_a_model_whose_config_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(DEEP)
    section = load(RECIPE).model
    with pytest.raises(ConfigError, match=r"config.json is not valid JSON \(it is nested too deeply"):
        initialise(Llama(section), section, tmp_path)
