"""Training's view of a dataset: which samples a step reads, and what is refused before the first step."""

import hashlib
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.trainer.conftest import RECIPE
from tests.trainer.data.conftest import Run, write_jsonl
from trainer.config import Recipe
from trainer.data import manifest
from trainer.data.batches import IGNORED, pack
from trainer.data.manifest import Manifest, Shard
from trainer.data.opening import Data, check_packing, open_data, open_together
from trainer.data.prefetch import Feed
from trainer.data.shards import GROUP
from trainer.errors import ConfigError, DataError, TrainerError
from trainer.models.build import build
from trainer.models.llama import Llama
from trainer.recipe_file import load

LENGTH = 16


def recipe(path: Path | str, *overrides: str) -> Recipe:
    sets = [f"data.path={path}", "data.source=shards", f"data.sequence_length={LENGTH}", *overrides]
    return load(RECIPE, sets)


def open_shards(path: Path | str, *overrides: str) -> Data:
    chosen = recipe(path, *overrides)
    return open_data(chosen, vocabulary=chosen.model.vocabulary)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of more shards than two groups of the order."""
    from trainer.__main__ import main

    folder = tmp_path_factory.mktemp("many")
    write_jsonl(
        folder / "in.jsonl", [{"text": f"<{number}>" + "abc " * (number * number % 29)} for number in range(900)]
    )
    words = ["prepare", str(folder / "in.jsonl"), "--output", str(folder / "out"), "--shard-tokens", "1500"]
    assert main([*words, "--split-share", "0.1"]) == 0
    return folder / "out"


def write_dataset(folder: Path, tokens: list[list[int]], *, vocabulary: int = 257, separator: int = 256) -> Path:
    """A dataset made by hand: one shard a list, the last one held out."""
    folder.mkdir(exist_ok=True)
    shards = []
    for number, ids in enumerate(tokens):
        split: manifest.Split = "held_out" if number == len(tokens) - 1 else "training"
        array = np.array(ids, dtype="<u2")
        (folder / f"{split}-{number}.bin").write_bytes(array.tobytes())
        top = int(array.max()) if len(array) else 0
        documents = int((array == separator).sum())
        shards.append(
            Shard(
                file=f"{split}-{number}.bin",
                split=split,
                tokens=len(ids),
                documents=documents,
                max_id=top,
                sha256=hashlib.sha256(array.tobytes()).hexdigest(),
            )
        )
    digest = manifest.data_digest(tuple(shards), separator=separator, tokenizer_digest="")
    made = Manifest(
        vocabulary=vocabulary,
        dtype="uint16",
        separator=separator,
        tokenizer="bytes",
        tokenizer_digest="",
        digest=digest,
        request="",
        shards=tuple(shards),
        sources=(),
    )
    (folder / manifest.FILE).write_bytes(manifest.encode(made))
    return folder


# ---- order


def test_an_epoch_reads_every_window_once_and_the_next_one_in_another_order(many: Path) -> None:
    samples = open_shards(many).training
    made = json.loads((many / "manifest.json").read_text())
    shards = [shard for shard in made["shards"] if shard["split"] == "training"]
    assert len(shards) > 2 * GROUP
    expected: Counter[bytes] = Counter()
    for shard in shards:
        tokens = np.fromfile(many / shard["file"], dtype="<u2").astype(np.int64)
        for window in range((len(tokens) - 1) // LENGTH):
            expected[tokens[window * LENGTH : (window + 1) * LENGTH].tobytes()] += 1
    assert samples.count == expected.total()
    epochs = [
        [row.tobytes() for row in samples.read(list(range(start, start + samples.count)), size=samples.count)[0]]
        for start in (0, samples.count)
    ]
    assert [Counter(epoch) for epoch in epochs] == [expected, expected]
    assert epochs[0] != epochs[1]
    other = open_shards(many, "seed=5").training
    assert [row.tobytes() for row in other.read(list(range(other.count)), size=other.count)[0]] != epochs[0]


def steps(path: Path, *, world: int, start: int, count: int, size: int = 48, micro: int = 4) -> list[tuple[int, Any]]:
    """(tokens that count, the step's inputs in sample order) of `count` steps, all ranks opening the data anew."""
    parts: list[list[Any]] = []
    for rank in range(world):
        data = open_shards(path)
        with Feed(data.training, size=size, micro=micro, rank=rank, world=world) as feed:
            parts.append([feed.step(start + index * size) for index in range(count)])
    result = []
    for index in range(count):
        mine = [part[index] for part in parts]
        assert len({step.tokens for step in mine}) == 1
        valid = sum(int((targets != IGNORED).sum()) for step in mine for _, targets in step.batches)
        assert valid == mine[0].tokens
        rows = [mine[rank].batches[batch][0] for batch in range(len(mine[0].batches)) for rank in range(world)]
        result.append((valid, np.concatenate(rows).tobytes()))
    return result


def test_resuming_several_times_in_an_epoch_at_other_world_sizes_reads_the_same_samples(many: Path) -> None:
    count, size = open_shards(many).training.count, 48
    total = count // size + 6  # over the end of the epoch
    whole = steps(many, world=1, start=0, count=total)
    pieces: list[tuple[int, Any]] = []
    for world, length in ((2, 3), (4, 1), (1, 5), (3, 4), (6, 2), (2, total - 17), (4, total)):  # the last in epoch two
        pieces += steps(many, world=world, start=len(pieces) * size, count=min(length, total - len(pieces)))
    assert pieces == whole


def test_a_feed_may_be_asked_for_any_step(many: Path) -> None:
    data = open_shards(many)
    expected = {start: data.training.read(list(range(start, start + 8)), size=8)[0] for start in (0, 8, 80, 16)}
    with Feed(data.training, size=8, micro=8, rank=0, world=1) as feed:
        for start in (0, 8, 80, 0, 16, 16):
            step = feed.step(start)
            assert (step.batches[0][0] == expected[start]).all()
            assert step.waited_s >= 0


def test_a_batch_larger_than_the_whole_set_goes_round_it(tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "tiny", [list(range(LENGTH + 1)), list(range(LENGTH + 1))])
    samples = open_shards(path).training
    assert samples.count == 1
    inputs, _ = samples.read(list(range(5)), size=5)
    assert (inputs == np.arange(LENGTH)).all()
    assert samples.valid_tokens(0, 5) == 5 * LENGTH


# ---- refusals


@pytest.mark.parametrize("tokens", [0, 1, LENGTH])
def test_data_shorter_than_a_sequence_is_refused_with_both_numbers(tmp_path: Path, tokens: int) -> None:
    path = write_dataset(tmp_path / "short", [[1] * tokens, [1] * 100])
    with pytest.raises(DataError, match=f"needs at least {LENGTH + 1} tokens for one sequence, has {tokens}"):
        open_shards(path)
    text = tmp_path / "text"
    text.mkdir()
    (text / "a").write_bytes(b"x" * max(tokens - 1, 0))
    with pytest.raises(DataError, match=f"needs at least {LENGTH + 1} tokens|no files"):
        open_shards(text, "data.source=path", "data.held_out_share=0.0001")


def test_a_dataset_without_any_shard_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"needs at least {LENGTH + 1} tokens for one sequence, has 0"):
        open_shards(write_dataset(tmp_path, []))


def test_a_file_with_half_a_token_or_too_few_is_refused(tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "cut", [[1] * 100, [1] * 100])
    shard = path / "training-0.bin"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"training-0\.bin has 199 bytes instead of 200"):
        open_shards(path)
    shard.unlink()
    with pytest.raises(DataError, match=r"training-0\.bin is missing"):
        open_shards(path)


def test_a_vocabulary_that_the_model_lacks_is_refused_with_the_number_to_set(tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "large", [[1] * 100, [1] * 100], vocabulary=5000)
    with pytest.raises(ConfigError, match=r"model\.vocabulary to at least 5000"):
        open_shards(path)
    assert open_shards(path, "model.vocabulary=5000").vocabulary == 5000


def test_ids_above_the_vocabulary_are_found_before_and_while_training(tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "wrong", [[300] * 100, [1] * 100], vocabulary=257)
    with pytest.raises(DataError, match="holds id 300"):
        open_shards(path)
    path = write_dataset(tmp_path / "damaged", [[1] * 100, [1] * 100])
    (path / "training-0.bin").write_bytes(b"\xff" * 200)  # the size is right
    with (
        Feed(open_shards(path).training, size=4, micro=4, rank=0, world=1) as feed,
        pytest.raises(DataError, match=r"training-0\.bin holds id 65535"),
    ):
        feed.step(0)


def test_a_recipe_s_check_opens_the_shards_that_are_here_and_no_others(run: Run, tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "data", [[1] * 100, [1] * 100], vocabulary=300)
    model = tmp_path / "model"
    model.mkdir()

    def check(place: Path | str, *overrides: str) -> tuple[int, str]:
        sets = [f"data.path={place}", "data.source=shards", f"data.sequence_length={LENGTH}", *overrides]
        code, output, problem = run(RECIPE, "--check", *[word for item in sets for word in ("--set", item)])
        return code, output + problem

    for config, said in (
        ({"vocab_size": 300, "max_position_embeddings": LENGTH}, "the recipe is valid"),
        ({"vocab_size": 299}, "vocabulary of 299 is smaller than the 300 ids"),
        ({"text_config": {"vocab_size": 299}}, "vocabulary of 299 is smaller than the 300 ids"),
        ({"max_position_embeddings": LENGTH - 1}, f"longer than the {LENGTH - 1} positions of the model"),
    ):
        (model / "config.json").write_text(json.dumps(config))
        code, text = check(path, f"model={{huggingface: {model}}}")
        assert said in text
        assert code == (0 if "valid" in said else ConfigError.exit_code)
    assert check(path, "model={huggingface: a-hub/name}")[0] == 0
    code, text = check(path)
    assert code == ConfigError.exit_code
    assert "set model.vocabulary to at least 300" in text
    (path / "training-0.bin").unlink()
    code, text = check(path, "model.vocabulary=300")
    assert code == DataError.exit_code
    assert "training-0.bin is missing" in text
    (path / "manifest.json").unlink()
    assert check(path)[0] == DataError.exit_code
    for place in (tmp_path / "elsewhere", "s3://no-such-bucket/data"):
        code, text = check(place)
        assert code == 0
        assert "on this machine, so the data is not checked" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace('"version": 1', '"version": 2'), "format version 2"),
        (lambda text: text.replace('"separator": 256', '"separator": 3'), "was changed"),
        (lambda text: text[:-20], "not a manifest"),
        (lambda _: "[]", "format version None"),
    ],
)
def test_a_manifest_that_is_not_as_written_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    path = write_dataset(tmp_path / "data", [[1] * 100, [1] * 100])
    (path / "manifest.json").write_text(change((path / "manifest.json").read_text()))
    with pytest.raises(DataError, match=message):
        open_shards(path)


def test_a_folder_without_a_manifest_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no finished dataset"):
        open_shards(tmp_path)


# ---- several ranks


class ThreadRanks:
    """Ranks as threads of one process; gather as torch's."""

    def __init__(self, world: int) -> None:
        self._barrier, self._values = threading.Barrier(world), [None] * world

    def rank(self, number: int) -> "ThreadRanks._Rank":
        return ThreadRanks._Rank(self, number)

    class _Rank:
        def __init__(self, ranks: "ThreadRanks", number: int) -> None:
            self._ranks, self._number = ranks, number

        def gather(self, value: Any) -> list[Any]:
            self._ranks._values[self._number] = value
            self._ranks._barrier.wait(timeout=30)
            return list(self._ranks._values)


def opened_by(recipes: list[Recipe]) -> list[str]:
    """What each rank says: its error, or its digest."""
    ranks, said = ThreadRanks(len(recipes)), [""] * len(recipes)

    def work(number: int) -> None:
        try:
            said[number] = open_together(recipes[number], ranks.rank(number), vocabulary=257).digest
        except TrainerError as error:
            said[number] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(recipes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said


def test_data_on_one_node_only_or_other_data_is_refused_on_all_ranks(tmp_path: Path) -> None:
    one = write_dataset(tmp_path / "one", [[1] * 100, [1] * 100])
    other = write_dataset(tmp_path / "other", [[1] * 100, [1] * 101])
    good = opened_by([recipe(one), recipe(one)])
    assert len(set(good)) == 1
    missing = opened_by([recipe(one), recipe(tmp_path / "nowhere")])
    assert len(set(missing)) == 1
    assert missing[0].startswith("DataError: rank 1 on ")
    assert "nowhere" in missing[0]
    different = opened_by([recipe(one), recipe(other)])
    assert len(set(different)) == 1
    assert "read different documents" in different[0]


# ---- packing


def test_packed_documents_have_the_loss_of_the_same_documents_alone() -> None:
    torch.manual_seed(0)
    chosen = recipe("unused", "data.source=stdlib")
    model = Llama(chosen.model).double()
    generator = np.random.default_rng(0)
    documents = [[*generator.integers(0, 256, size=size).tolist(), 256] for size in (5, 1, 0, 0, 9, 2, 11)]
    stream = [token for document in documents for token in document]

    def loss(samples: Any) -> float:
        inputs, targets, *rest = (torch.from_numpy(part) for part in samples)
        logits = model(inputs, *rest)
        flat = (logits.flatten(0, 1), targets.flatten())
        return functional.cross_entropy(*flat, ignore_index=IGNORED, reduction="sum").item()

    window = np.array([*stream, 0])
    alone = sum(
        loss(pack([np.array(d)], size=1, length=len(d) - 1, separator=256, packing="stream"))
        for d in documents
        if len(d) > 1  # an empty one has nothing to predict its end from
    )
    packed = loss(pack([window], size=1, length=len(stream), separator=256, packing="documents"))
    streamed = loss(pack([window], size=1, length=len(stream), separator=256, packing="stream"))
    assert packed == pytest.approx(alone, rel=1e-6)
    assert abs(streamed - alone) > 1e-3  # it does matter


def test_packing_is_refused_for_a_model_that_would_attend_across_documents() -> None:
    chosen = recipe("unused", "data.source=stdlib", "data.packing=documents")
    check_packing(chosen.data, Llama(chosen.model))
    with pytest.raises(ConfigError, match="Linear"):
        check_packing(chosen.data, torch.nn.Linear(1, 1))


def test_a_compiled_model_may_have_packed_documents() -> None:
    chosen = recipe("unused", "data.source=stdlib", "data.packing=documents", "training.compile=true")
    for deferred in (False, True):
        check_packing(chosen.data, build(chosen, torch.device("cpu"), code=None, deferred=deferred).model)


def test_training_on_shards_logs_what_each_step_waited_for_its_data(run: Run, many: Path, tmp_path: Path) -> None:
    sets = [f"output_dir={tmp_path}/whole", f"data.path={many}", "data.source=shards", "strategy=single"]
    sets += ["data.packing=documents", "training.global_batch_size=64"]
    words = [word for item in sets for word in ("--set", item)]
    code, output, problem = run(RECIPE, *words, "--set", "training.steps=4")
    assert code == 0, problem
    assert "held-out loss" in output
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    waits = [line["data_wait_s"] for line in lines if line["event"] == "step"]
    assert len(waits) == 4
    assert min(waits) >= 0
