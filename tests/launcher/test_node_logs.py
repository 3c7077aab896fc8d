"""The merged log: whole lines, each once, whatever the bytes and whoever is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launcher_nodes import wait_for

from launcher.node import logs
from launcher.node.layout import RunFolder, read_json
from launcher.node.logs import Merger, split_lines, tail


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "sources").mkdir()
    return RunFolder(tmp_path)


def append(folder: RunFolder, source: str, data: bytes) -> None:
    with folder.source(source).open("ab") as file:
        file.write(data)


def test_lines_of_all_sources_carry_their_rank(folder: RunFolder) -> None:
    append(folder, "rank-10", b"ten\n")
    append(folder, "rank-2", b"two\n")
    append(folder, "torchrun", b"warning\n")
    Merger(folder).step()
    assert folder.log.read_bytes() == b"[torchrun] warning\n[rank 2] two\n[rank 10] ten\n"


def test_an_unfinished_line_waits_for_its_end_and_is_kept_when_none_comes(folder: RunFolder) -> None:
    merger = Merger(folder)
    append(folder, "rank-0", b"half")
    merger.step()
    assert not folder.log.exists()
    append(folder, "rank-0", b" whole\nlast words")
    merger.step()
    merger.step(flush=True)
    assert folder.log.read_bytes() == b"[rank 0] half whole\n[rank 0] last words\n"


def test_bytes_that_are_not_text_go_through_unchanged(folder: RunFolder) -> None:
    append(folder, "rank-0", b"\xff\xfe\x00\n")
    Merger(folder).step()
    assert folder.log.read_bytes() == b"[rank 0] \xff\xfe\x00\n"


def test_each_state_of_a_progress_bar_is_a_line() -> None:
    assert split_lines(b"10%\r20%\r\ndone\n\r", flush=False) == ([b"10%", b"20%", b"done"], 14)


def test_a_line_longer_than_the_limit_is_cut_not_lost(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_LINE_BYTES", 10)
    append(folder, "rank-0", b"x" * 25 + b"\n")
    Merger(folder).step()
    assert folder.log.read_bytes().replace(b"[rank 0] ", b"").replace(b"\n", b"") == b"x" * 25


@pytest.mark.parametrize("cut", [None, 0, 5, 14])
def test_a_merger_killed_at_any_byte_is_continued_without_loss_or_doubling(folder: RunFolder, cut: int | None) -> None:
    append(folder, "rank-0", b"one\n")
    Merger(folder).step()
    append(folder, "rank-0", b"two\nthree\nfo")
    before = folder.log.stat().st_size
    Merger(folder).step()
    if cut is not None:  # as if the killed merger had written its note, but only some bytes of the piece
        os.truncate(folder.log, before + cut)
    append(folder, "rank-0", b"ur\n")
    Merger(folder).step()
    assert folder.log.read_bytes() == b"[rank 0] one\n[rank 0] two\n[rank 0] three\n[rank 0] four\n"
    assert read_json(folder.merged) is not None


def test_tail_goes_on_from_an_offset_and_ends_with_the_run(folder: RunFolder) -> None:
    folder.log.write_bytes(b"[rank 0] one\n[rank 0] two\n")
    reader, writer = os.pipe()
    tail(folder, 13, output=writer, over=lambda: True)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"[rank 0] two\n"


def test_tail_ends_when_nobody_reads_any_more(folder: RunFolder) -> None:
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from launcher.node.layout import RunFolder\nfrom launcher.node.logs import tail\n"
        "tail(RunFolder(Path(sys.argv[1])), 0, output=1, over=lambda: False)"
    )
    words = [sys.executable, "-c", program, str(folder.path)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    try:
        assert process.stdout is not None
        process.stdout.close()
        wait_for(lambda: process.poll() is not None, "the tail to end")
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
