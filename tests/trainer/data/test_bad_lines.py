"""Lines that are no documents: all are found before anything is trained on, and each is named by file and line."""

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainer.data.conftest import Run, contents, write_jsonl
from trainer.data import manifest
from trainer.data.storage import Folder
from trainer.errors import DataError

GOOD = b'{"text": "good"}\n'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"\n", "the line is blank"),
        (b'{"text": "a"} {"text": "b"}\n', "more than one JSON value"),
        (b'{"text": "a"\n', "not valid JSON"),
        (b'{"text": "a\n', "not valid JSON (Invalid control character at column 12)"),
        (b'{"text": "a", "text": "b"}\n', "key 'text' is given twice"),
        (b'{"text": "a", "x": [{"y": 1, "y": 1}]}\n', "key 'y' is given twice"),
        (b'{"text": "a", "x": ' + b"9" * 5000 + b"}\n", "too many digits"),
        (b'{"body": "a"}\n', "there is no key 'text' (keys here: body)"),
        (b'{"text": null}\n', "'text' is null, not text"),
        (b'{"text": 3}\n', "'text' is a number"),
        (b'["a"]\n', "this is a JSON array"),
        (b'"a"\n', "one line must hold one object"),
        (b'{"text": "\xff"}\n', "is no UTF-8 (0xff)"),
        (b'{"text": "\\ud800"}\n', "half of a surrogate pair"),
        (b'\xef\xbb\xbf{"text": "a"}\n', "not valid JSON"),
        (b"[" * 100_000 + b"\n", "JSON"),
    ],
)
def test_a_bad_line_is_named_by_file_and_line(run: Run, tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(GOOD * 3 + line + GOOD)
    code, _, problem = run("prepare", path, "--output", tmp_path / "out")
    assert code == DataError.exit_code
    assert f"{path}:4: " in problem
    assert reason in problem
    assert "1 bad lines" in problem
    assert "--skip-bad-lines" in problem
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_file_cut_within_its_last_line_is_named(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(GOOD * 2 + GOOD[:-8])
    _, _, problem = run("prepare", path, "--output", tmp_path / "out")
    assert f"{path}:3: the file ends within the line" in problem


@pytest.mark.parametrize("text", [b'[\n  {"text": "a"}\n]\n', b'{\n  "text": "a"\n}\n'])
def test_indented_json_and_arrays_are_recognised(run: Run, tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(text)
    _, _, problem = run("prepare", path, "--output", tmp_path / "out")
    assert f"{path}:1: one line must hold one whole object" in problem


def test_what_looks_odd_but_is_right_is_read(run: Run, tmp_path: Path) -> None:
    """A byte order mark before the first line, U+2028 in a string, no newline at the end, one line of 50 MiB."""
    path = tmp_path / "in.jsonl"
    lines = ['\ufeff{"text": "first"}', '{"text": "one\u2028two"}', '{"text": "' + "x" * (50 * 2**20) + '"}']
    path.write_text("\n".join(lines), encoding="utf-8")
    code, _, problem = run("prepare", path, "--output", tmp_path / "out", "--split-share", 0)
    assert code == 0, problem
    (shard, *others) = manifest.load(Folder(str(tmp_path / "out"))).shards
    assert shard.documents + sum(other.documents for other in others) == 3
    assert (tmp_path / "out" / shard.file).read_bytes()[:10] == "first".encode("utf-16-le")


def test_all_bad_lines_are_found_at_once_in_every_file_and_unit(run: Run, tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    lines = [GOOD] * 3000
    lines[10] = lines[2990] = b"{}\n"
    first.write_bytes(b"".join(lines))
    second.write_bytes(gzip.compress(GOOD + b"nonsense\n"))
    words = ["prepare", first, second, "--output", tmp_path / "out", "--shard-tokens", 1000, "--split-share", 0]
    code, _, problem = run(*words, "--workers", 2)
    assert code == DataError.exit_code
    assert "3 bad lines" in problem
    assert [place for place in (f"{first}:11:", f"{first}:2991:", f"{second}:2:") if place not in problem] == []
    code, output, _ = run(*words, "--skip-bad-lines")
    assert code == 0
    assert "skipped 3 bad lines" in output
    made = manifest.load(Folder(str(tmp_path / "out")))
    assert [(source.documents, source.skipped) for source in made.sources] == [(2998, 2), (1, 1)]
    assert sum(shard.documents for shard in made.shards) == 2999


def test_after_a_correction_the_rest_is_not_done_again_and_nothing_stale_is_left(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    objects: list[object] = [{"text": f"{number} " + "word " * 50} for number in range(300)]
    write_jsonl(path, [*objects, {}])
    words = ["prepare", path, "--shard-tokens", 1000, "--output"]
    assert run(*words, tmp_path / "out")[0] == DataError.exit_code
    write_jsonl(path, objects[:100])  # fewer units than before: their shards must not stay
    assert run(*words, tmp_path / "out")[0] == 0
    assert run(*words, tmp_path / "fresh")[0] == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_text_that_is_no_utf8_is_named_with_its_byte(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes("größer".encode() + b"\xe9t\xe9")
    code, _, problem = run("prepare", path, "--output", tmp_path / "out")
    assert code == DataError.exit_code
    assert f"{path}: byte 8 is no UTF-8 (0xe9)" in problem


def test_rows_of_tables_are_named_too(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"text": ["a"] * 70 + [None] + ["b"] * 9}), path, row_group_size=30)
    _, _, problem = run("prepare", path, "--output", tmp_path / "out")
    assert f"{path}: row 70: 'text' is null, not text" in problem
    _, _, problem = run("prepare", path, "--output", tmp_path / "out", "--text-key", "body")
    assert "no column 'body'" in problem
    path.write_bytes(path.read_bytes()[:100])
    code, _, problem = run("prepare", path, "--output", tmp_path / "out")
    assert code == DataError.exit_code
    assert "not a Parquet file" in problem


def test_a_truncated_archive_is_named(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(b'{"text": "%d"}\n' % number for number in range(5000)))[:-2000])
    code, _, problem = run("prepare", path, "--output", tmp_path / "out")
    assert code == DataError.exit_code
    assert str(path) in problem


@pytest.mark.parametrize("words", [["nowhere.jsonl"], [], ["empty"], ["data.json"], ["blank.txt"]])
def test_inputs_that_hold_nothing_are_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("data.json").write_text("{}")
    Path("blank.txt").write_text("")
    code, _, problem = run("prepare", *words, "--output", "out")
    assert code in (2, DataError.exit_code)
    assert len(problem.splitlines()) == 1
    assert not Path("out/manifest.json").exists()


def test_a_dataset_or_tokenizer_that_cannot_be_had_is_one_sentence(run: Run, corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "nothing here"
    folder.mkdir()
    code, _, problem = run("prepare", "--dataset", folder, "--output", tmp_path / "out")
    assert code == DataError.exit_code
    assert "nothing here" in problem
    code, _, problem = run("prepare", corpus, "--tokenizer", folder, "--output", tmp_path / "out")
    assert code == 2
    assert "nothing here" in problem
