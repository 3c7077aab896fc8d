"""Small corpora, and `python -m trainer …` in this process."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from trainer.__main__ import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """run("prepare", …) → (exit code, standard output, standard error)."""

    def call(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """400 documents of unequal lengths, most of them not ASCII."""
    return [f"document {number}: " + "Wörter, 漢字 und 😀 \n" * (number * number % 23) for number in range(400)]


@pytest.fixture(scope="session")
def corpus(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    write_jsonl(path, [{"text": text} for text in texts])
    return path


def write_jsonl(path: Path, objects: Sequence[object]) -> None:
    path.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in objects), encoding="utf-8")


def contents(folder: Path) -> dict[str, bytes]:
    """File name → bytes of a finished dataset."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
