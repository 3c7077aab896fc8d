"""Fine-tuning on prompt and response pairs: what counts, what is padding, what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.conftest import RECIPE, events
from tests.trainer.data.conftest import Run, write_jsonl
from trainer.config import Recipe
from trainer.data.batches import IGNORED
from trainer.data.opening import Data, open_data
from trainer.data.prefetch import Feed
from trainer.errors import DataError
from trainer.recipe_file import load


def recipe(path: Path, *overrides: str) -> Recipe:
    sets = [f"data.path={path}", "data.source=jsonl", "data.sequence_length=32", "data.held_out_share=0.2"]
    return load(RECIPE, [*sets, *overrides])


def opened(path: Path, *overrides: str) -> Data:
    return open_data(recipe(path, *overrides), vocabulary=257)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    write_jsonl(path, [{"prompt": f"{n}?" + "p" * (n % 5), "response": "r" * (1 + n % 7)} for n in range(100)])
    return path


def test_only_the_response_and_its_end_are_trained_on(pairs: Path) -> None:
    data = opened(pairs)
    inputs, targets = data.training.read(list(range(data.training.count)), size=data.training.count)
    known = {(item["prompt"] + item["response"], item["response"]) for item in map(json.loads, pairs.open())}
    for row, wanted in zip(inputs, targets, strict=True):
        counted = wanted[wanted != IGNORED]
        assert counted[-1] == 256  # the model learns to stop
        response = bytes(counted[:-1].astype(np.uint8)).decode()
        text = bytes(row.astype(np.uint8)).rstrip(b"\0").decode()
        assert (text, response) in known
        first = int(np.flatnonzero(wanted != IGNORED)[0])
        assert text[first + 1 :] == response  # the input before it is the prompt's last token
    assert data.training.valid_tokens(0, data.training.count) == int((targets != IGNORED).sum())


def test_batches_are_as_long_as_their_longest_example(pairs: Path) -> None:
    data = opened(pairs)
    widths = {data.training.read([counter], size=2)[0].shape for counter in range(data.training.count)}
    assert {width for _, width in widths} == {8, 16}
    assert all(size == 2 for size, _ in widths)


def test_the_same_examples_whatever_the_world_size(pairs: Path) -> None:
    data, counted = opened(pairs), []
    for world in (1, 2, 4):
        steps = []
        for rank in range(world):
            with Feed(data.training, size=16, micro=2, rank=rank, world=world) as feed:
                steps.append([feed.step(start) for start in (0, 16, 96)])
        counted.append(
            [sum(int((batch[1] != IGNORED).sum()) for part in steps for batch in part[i].batches) for i in range(3)]
        )
        assert counted[-1] == [step.tokens for step in steps[0]]
    assert counted[0] == counted[1] == counted[2]


def test_what_is_too_long_is_cut_and_counted(pairs: Path) -> None:
    with pairs.open("a") as stream:
        stream.write(json.dumps({"prompt": "a", "response": "b" * 100}) + "\n")
        stream.write(json.dumps({"prompt": "a" * 100, "response": "b"}) + "\n")
        stream.write(json.dumps({"prompt": "", "response": ""}) + "\n")
    data = opened(pairs)
    assert data.notes == (
        "note: 2 of 103 examples are cut to data.sequence_length, 1 of them left out because nothing of the response "
        "was left",
        "note: 1 of 103 examples are left out because they have no text",
    )


def test_examples_without_a_prompt_count_whole(tmp_path: Path) -> None:
    path = tmp_path / "text.jsonl"
    write_jsonl(path, [{"text": f"{number}abc"} for number in range(20)])
    data = opened(path, "data.prompt_key=null", "data.response_key=text")
    inputs, targets = data.training.read([0], size=1)
    count = int((targets != IGNORED).sum())
    assert count == len(bytes(inputs[0].astype(np.uint8)).rstrip(b"\0"))  # all but the first, and the end


def test_every_bad_line_is_named_before_training(pairs: Path) -> None:
    with pairs.open("a") as stream:
        stream.write('{"prompt": "a"}\n\n{"prompt": null, "response": "b"}\n')
    with pytest.raises(DataError) as caught:
        opened(pairs)
    for place in ("101: there is no key 'response'", "102: the line is blank", "103: 'prompt' is null"):
        assert f"{pairs}:{place}" in str(caught.value)


def test_a_part_without_examples_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    write_jsonl(path, [{"prompt": "a", "response": "b"}])
    with pytest.raises(DataError, match=r"needs at least 1 example, has 0 of the 1 in .*one\.jsonl; give more"):
        opened(path)


def test_fine_tuning_gives_the_same_losses_however_rows_are_accumulated_and_padded(
    run: Run, pairs: Path, tmp_path: Path
) -> None:
    series = []
    for rows in (1, 16):
        sets = [f"data.path={pairs}", "data.source=jsonl", "strategy=single", f"output_dir={tmp_path / str(rows)}"]
        sets += [f"training.micro_batch_size={rows}", "training.precision=float64", "training.clip_norm=0.1"]
        code, output, problem = run(RECIPE, *[word for item in sets for word in ("--set", item)])
        assert code == 0, problem
        assert "finished: step 6" in output
        steps = events(tmp_path / str(rows), "step")
        series.append([line[key] for line in steps for key in ("loss", "gradient_norm")])
    assert series[0] == pytest.approx(series[1], rel=1e-9)
