"""`prepare`: what goes in comes out, whatever the format, the number of workers, or an interruption."""

import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tests.trainer.conftest import DEADLINE_S, RECIPE, ROOT
from tests.trainer.data.conftest import Run, contents, write_jsonl
from trainer.data import manifest
from trainer.data.manifest import Manifest
from trainer.data.storage import Folder
from trainer.errors import DataError

SMALL = ("--shard-tokens", "2000")  # many units and shards of a small corpus


def documents_in(folder: Path, split: str) -> list[bytes]:
    """The documents of a dataset of bytes, read as the manifest says and as any program could."""
    made = json.loads((folder / "manifest.json").read_text())
    found = []
    for shard in made["shards"]:
        if shard["split"] == split:
            tokens = np.fromfile(folder / shard["file"], dtype="<u2" if made["dtype"] == "uint16" else "<u4")
            assert len(tokens) == shard["tokens"]
            assert hashlib.sha256(tokens.tobytes()).hexdigest() == shard["sha256"]
            ends = np.flatnonzero(tokens == made["separator"])
            assert len(ends) == shard["documents"]
            found += [bytes(part[:-1].astype(np.uint8)) for part in np.split(tokens, ends + 1) if len(part)]
    return found


def read_manifest(folder: Path) -> Manifest:
    return manifest.load(Folder(str(folder)))


def test_documents_come_back_whole_and_in_order(run: Run, corpus: Path, texts: list[str], tmp_path: Path) -> None:
    assert run("prepare", corpus, "--output", tmp_path / "out", "--split-share", 0.1, *SMALL)[0] == 0
    training, held_out = documents_in(tmp_path / "out", "training"), documents_in(tmp_path / "out", "held_out")
    assert 20 < len(held_out) < 60
    assert training == [text.encode() for text in texts if text.encode() not in set(held_out)]
    assert len(training) + len(held_out) == len(texts)


def test_every_format_gives_the_same_tokens(run: Run, corpus: Path, texts: list[str], tmp_path: Path) -> None:
    rows = pa.table({"other": list(range(len(texts))), "text": texts})
    pq.write_table(rows, tmp_path / "corpus.parquet", row_group_size=50)
    (tmp_path / "corpus.jsonl.gz").write_bytes(gzip.compress(corpus.read_bytes()))
    with pa.CompressedOutputStream(str(tmp_path / "corpus.jsonl.zst"), "zstd") as stream:
        stream.write(corpus.read_bytes())
    datasets.Dataset.from_dict({"text": texts}).save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": texts})}).save_to_disk(str(tmp_path / "dict"))
    inputs: list[list[object]] = [
        [corpus],
        [tmp_path / "corpus.parquet"],
        [tmp_path / "corpus.jsonl.gz"],
        [tmp_path / "corpus.jsonl.zst"],
        ["--dataset", tmp_path / "one"],
        ["--dataset", tmp_path / "dict", "--split", "train"],
    ]
    digests = set()
    for number, words in enumerate(inputs):
        code, _, problem = run("prepare", *words, "--output", tmp_path / f"out{number}")
        assert code == 0, problem
        digests.add(read_manifest(tmp_path / f"out{number}").digest)
    assert len(digests) == 1


def test_a_large_file_is_cut_into_units_without_losing_a_line(run: Run, corpus: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["row " * 200] * 100}), tmp_path / "rows.parquet", row_group_size=3)
    code, output, _ = run("prepare", corpus, tmp_path / "rows.parquet", "--output", tmp_path / "out", *SMALL)
    assert code == 0
    assert sum(shard.documents for shard in read_manifest(tmp_path / "out").shards) == 500
    assert len({shard.file.split("-")[1] for shard in read_manifest(tmp_path / "out").shards}) > 10
    assert "prepare: " in output
    assert "\r" not in output  # no terminal: plain lines


def test_text_files_are_one_document_each_and_hidden_ones_are_left_out(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    for name, text in (("b.txt", "second"), ("a.md", "first"), ("deep/c.py", "third"), (".hidden", "no"), ("e", "")):
        (tmp_path / "in" / name).write_text(text)
    code, output, _ = run("prepare", tmp_path / "in", "--output", tmp_path / "out", "--split-share", 0)
    assert code == 0
    assert documents_in(tmp_path / "out", "training") == [b"first", b"second", b"third"]
    assert "left out 1 documents without text" in output


def test_the_number_of_workers_changes_no_byte(run: Run, corpus: Path, tokenizer_file: Path, tmp_path: Path) -> None:
    """Nor does it hang with a tokenizer, which has threads of its own."""
    words = ["prepare", corpus, "--tokenizer", tokenizer_file, *SMALL]
    for workers in (1, 3):
        assert run(*words, "--output", tmp_path / f"{workers}", "--workers", workers)[0] == 0
    assert contents(tmp_path / "1") == contents(tmp_path / "3")


def long_prepare(folder: Path) -> list[str]:
    """Its words, before the output's: the input is `folder`'s in.jsonl, in many units of work."""
    return ["prepare", str(folder / "in.jsonl"), "--shard-tokens", "20000", "--workers", "2", "--output"]


def start_long_prepare(folder: Path, output: Path) -> subprocess.Popen[str]:
    """Returns in the middle of its work."""
    write_jsonl(folder / "in.jsonl", [{"text": f"{number} " + "word " * 400} for number in range(4000)])
    process = subprocess.Popen(
        [sys.executable, "-m", "trainer", *long_prepare(folder), str(output)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + DEADLINE_S
    while len(list(output.glob(".progress/unit-*.json"))) < 2:
        assert time.monotonic() < deadline
        assert process.poll() is None, "it ended before it could be told to"
        time.sleep(0.002)
    return process


def test_a_killed_prepare_goes_on_and_ends_with_the_same_bytes(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "killed"
    process = start_long_prepare(tmp_path, output)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + DEADLINE_S
    while True:  # a killed parent takes its workers along
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            break
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not (output / "manifest.json").exists()
    before = {path.name: path.stat().st_mtime_ns for path in output.glob("*.bin")}
    finished = [json.loads(path.read_text()) for path in output.glob(".progress/unit-*.json")]
    kept = {shard["file"] for unit in finished for shard in unit["shards"]}
    code, text, _ = run(*long_prepare(tmp_path), output)
    assert code == 0
    assert "from before" in text
    assert run(*long_prepare(tmp_path), tmp_path / "whole")[0] == 0
    assert contents(output) == contents(tmp_path / "whole")
    assert kept
    assert all((output / name).stat().st_mtime_ns == before[name] for name in kept)  # not done again
    assert not (output / ".progress").exists()


def test_the_same_prepare_again_has_nothing_to_do_and_another_one_is_refused(
    run: Run, corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert run("prepare", corpus, "--output", out)[0] == 0
    before = contents(out)
    code, text, _ = run("prepare", corpus, "--output", out)
    assert code == 0
    assert "already prepared" in text
    code, _, problem = run("prepare", corpus, "--output", out, "--split-share", 0.5)
    assert code == DataError.exit_code
    assert "--output" in problem
    assert contents(out) == before


def test_equal_documents_are_on_the_same_side_of_the_split(run: Run, texts: list[str], tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in.jsonl", [{"text": text} for text in texts * 2])
    assert run("prepare", tmp_path / "in.jsonl", "--output", tmp_path / "out", "--split-share", 0.3)[0] == 0
    training, held_out = (set(documents_in(tmp_path / "out", split)) for split in ("training", "held_out"))
    assert training
    assert held_out
    assert not training & held_out


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>", "<|other|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["hello world, hello there"] * 10, trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_a_tokenizer_file_is_used_and_special_tokens_in_text_are_plain_text(
    run: Run, tokenizer_file: Path, tmp_path: Path
) -> None:
    texts = ["hello world", "a <|endoftext|> in the text", "hello " * 300_000]
    write_jsonl(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    out = tmp_path / "out"
    words = ["prepare", tmp_path / "in.jsonl", "--tokenizer", tokenizer_file, "--split-share", 0, "--output"]
    assert run(*words, out)[0] == 0
    made, tokenizer = read_manifest(out), Tokenizer.from_file(str(out / "tokenizer.json"))
    assert made.vocabulary == max(tokenizer.get_vocab().values()) + 1
    assert made.separator == tokenizer.token_to_id("<|endoftext|>")
    tokens = np.fromfile(out / made.shards[0].file, dtype="<u2")
    parts = np.split(tokens, np.flatnonzero(tokens == made.separator) + 1)[:-1]
    table = {number: text for text, number in tokenizer.get_vocab().items()}
    decoded = ["".join(table[int(number)] for number in part[:-1]).replace("Ġ", " ") for part in parts]
    assert decoded == texts
    assert made.shards[0].max_id == tokens.max()
    assert run(*words, tmp_path / "other", "--separator", "<|other|>")[0] == 0
    assert read_manifest(tmp_path / "other").separator == tokenizer.token_to_id("<|other|>")
    code, _, problem = run(*words, tmp_path / "none", "--separator", "<nothing>")
    assert code == 2
    assert "--separator" in problem


def test_a_tokenizer_that_is_none_is_refused_in_one_sentence(run: Run, corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    code, _, problem = run("prepare", corpus, "--output", tmp_path / "out", "--tokenizer", tmp_path / "tokenizer.json")
    assert code == 2
    assert "tokenizer.json" in problem
    assert "Traceback" not in problem


def test_verify_finds_one_changed_byte_and_a_missing_file(run: Run, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("prepare", corpus, "--output", out, *SMALL)[0] == 0
    assert run("verify", out)[0] == 0
    first, second, *_ = sorted(out.glob("training-*.bin"))
    content = bytearray(first.read_bytes())
    content[7] ^= 1
    first.write_bytes(content)
    second.unlink()
    code, _, problem = run("verify", out)
    assert code == DataError.exit_code
    assert f"{first} is damaged" in problem
    assert f"{second} is missing" in problem


def test_without_a_locale_the_result_is_the_same(run: Run, tmp_path: Path) -> None:
    """An SSH session has no LANG: names and texts that aren't ASCII must not depend on it."""
    source = tmp_path / "ordner ä 漢"
    source.mkdir()
    for name in ("é.txt", "漢字.txt", "😀.txt", "z.txt", "e\u0301.txt"):
        (source / name).write_text(f"{name}: naïve 漢字 😀 e\u0301", encoding="utf-8")
    write_jsonl(source / "ü.jsonl", [{"text": "größer 漢"}, {"text": "straße"}])
    words = ["prepare", str(source), "--split-share", "0.3", "--output"]
    assert run(*words, tmp_path / "here")[0] == 0
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment.pop("PYTHONIOENCODING", None)
    done = subprocess.run(
        [sys.executable, "-m", "trainer", *words, str(tmp_path / "there ä")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "there ä").encode() in done.stdout
    assert contents(tmp_path / "here") == contents(tmp_path / "there ä")
    overrides = [f"data.path={source}", "data.source=path", "data.sequence_length=8", "data.held_out_share=0.4"]
    sets = [word for item in overrides for word in ("--set", item)]
    scored = [sys.executable, "-m", "trainer", "baseline", str(RECIPE), "--json", *sets]
    there = subprocess.run(scored, cwd=ROOT, env=environment, capture_output=True, check=True)
    assert json.loads(there.stdout)["held_out_loss"] == json.loads(run(*scored[3:])[1])["held_out_loss"]


def test_a_second_prepare_into_the_same_folder_is_refused(run: Run, corpus: Path, tmp_path: Path) -> None:
    import fcntl

    (tmp_path / "out" / ".progress").mkdir(parents=True)
    with (tmp_path / "out" / ".progress" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, problem = run("prepare", corpus, "--output", tmp_path / "out")
    assert code == DataError.exit_code
    assert "another prepare" in problem


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    output = tmp_path / "out"
    process = start_long_prepare(tmp_path, output)
    process.send_signal(signal.SIGINT)
    _, problem = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, problem
    assert "the same command again" in problem
    assert not (output / "manifest.json").exists()
