"""Commands and files on one node, over a real sshd."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bootstrap.errors import ConnectionLost, DiskFull, RemoteError, RemoteTimeout, TransferError
from bootstrap.fleet import Fleet, Shell
from tests.bootstrap.servers import Server, alive, cluster_of, names, node_for, wait_until


@pytest.fixture
def server(start_sshd: Callable[..., Server]) -> Server:
    return start_sshd()


@pytest.fixture
def shell(server: Server, root: Path, tmp_path: Path) -> Iterator[Shell]:
    with Fleet(cluster_of(node_for(server, 0, tmp_path)), root=root, connect_deadline_s=10) as fleet:
        yield fleet.shell("node-0")


def test_words_reach_the_command_as_they_are(shell: Shell) -> None:
    words = ["a b", "$HOME", "`id`", "it's", 'say "x"', "", "*", "ü", "-n", "new\nline"]
    done = shell.run(["printf", "%s\\0", *words])
    assert done.stdout.decode().split("\0")[:-1] == words
    assert done.stderr == b""


def test_environment_is_set_for_the_command(shell: Shell) -> None:
    assert shell.run(["printenv", "GREETING"], env={"GREETING": "hello $USER"}).stdout == b"hello $USER\n"


def test_output_is_bytes_whatever_they_are(shell: Shell) -> None:
    assert shell.run(["printf", r"\377\376\r50%%\r100%%"]).stdout == b"\xff\xfe\r50%\r100%"


def test_a_line_of_two_mebibytes_without_an_end_arrives_whole(shell: Shell) -> None:
    done = shell.run(["sh", "-c", "head -c 2097152 /dev/zero; echo end >&2"])
    assert (len(done.stdout), done.stderr) == (2 << 20, b"end\n")


def test_stdin_is_what_was_given_then_end_of_file(shell: Shell) -> None:
    data = os.urandom(3 << 20)
    assert shell.run(["cat"], stdin=data).stdout == data
    assert shell.run(["cat"]).stdout == b""


def test_a_command_that_ignores_its_stdin_still_ends_well(shell: Shell) -> None:
    assert shell.run(["true"], stdin=bytes(5 << 20)).exit_code == 0


def test_the_callers_stdin_is_not_read(shell: Shell) -> None:
    reader, writer = os.pipe()
    saved = os.dup(0)
    try:
        os.write(writer, b"mine")
        os.dup2(reader, 0)
        shell.run(["cat"])
        os.close(writer)
        assert os.read(0, 10) == b"mine"
    finally:
        os.dup2(saved, 0)
        for descriptor in (saved, reader):
            os.close(descriptor)


def test_exit_codes_come_back(shell: Shell) -> None:
    assert shell.run(["sh", "-c", "exit 3"], check=False).exit_code == 3
    with pytest.raises(RemoteError, match=r"node-0: `sh -c 'echo why >&2; exit 3'` .* 3: why") as error:
        shell.run(["sh", "-c", "echo why >&2; exit 3"])
    assert error.value.exit_code == 3


def test_a_command_killed_by_a_signal_is_128_and_the_signal(shell: Shell) -> None:
    assert shell.run(["sh", "-c", "kill -9 $$"], check=False).exit_code == 128 + signal.SIGKILL


def test_a_missing_command_is_127(shell: Shell) -> None:
    with pytest.raises(RemoteError, match="not-there"):
        shell.run(["not-there"])


def test_a_command_that_takes_too_long_is_ended_with_its_children(shell: Shell, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"echo $$ >'{pids}'; sleep 100 & echo $! >>'{pids}'; wait"
    with pytest.raises(RemoteTimeout, match=r"node-0: .* within 1 s"):
        shell.run(["sh", "-c", script], timeout_s=1)
    started = [int(word) for word in pids.read_text().split()]
    assert len(started) == 2
    wait_until(lambda: not any(map(alive, started)), "the end of the command and its child")


def test_a_stream_passes_output_on_as_it_comes(shell: Shell, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    seen: list[bytes] = []

    def take(data: bytes) -> None:
        seen.append(data)
        gate.touch()  # the command waits for it: so the first line came before the end

    script = f"echo first; while ! test -e '{gate}'; do sleep 0.05; done; echo second; exit 4"
    assert shell.stream(["sh", "-c", script], take, timeout_s=20) == 4
    assert b"".join(seen) == b"first\nsecond\n"


def test_an_error_of_the_caller_ends_the_stream_on_the_node(shell: Shell) -> None:
    pids: list[int] = []

    def take(data: bytes) -> None:
        pids.append(int(data))
        raise KeyError("mine")

    with pytest.raises(KeyError):
        shell.stream(["sh", "-c", "echo $$; exec sleep 100"], take)
    wait_until(lambda: not alive(pids[0]), "the end of the stream's command")


def test_a_connection_lost_in_the_middle_is_no_exit_code(shell: Shell, server: Server) -> None:
    def cut(_: bytes) -> None:
        for pid in server.sessions():
            os.kill(pid, signal.SIGKILL)

    with pytest.raises(ConnectionLost, match="node-0: connection lost"):
        shell.stream(["sh", "-c", "echo on; exec sleep 5"], cut)
    assert shell.run(["echo", "again"]).stdout == b"again\n"


def test_a_session_that_accepts_one_channel_serves_two_users_in_turn(
    start_sshd: Callable[..., Server], root: Path, tmp_path: Path
) -> None:
    server = start_sshd("MaxSessions 1")
    with Fleet(cluster_of(node_for(server, 0, tmp_path)), root=root, connect_deadline_s=10) as fleet:
        shell = fleet.shell("node-0")
        done: list[bytes] = []
        threads = [threading.Thread(target=lambda: done.append(shell.run(["echo", "x"]).stdout)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        shell.put_bytes(b"y", f"{tmp_path}/y")
    assert done == [b"x\n"] * 4


def test_files_arrive_whole_with_their_mode(shell: Shell, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.write_bytes(os.urandom(1 << 20))
    target = tmp_path / "deep er" / "file"
    shell.put_file(local, str(target), mode=0o600)
    assert target.read_bytes() == local.read_bytes()
    assert target.stat().st_mode & 0o777 == 0o600
    shell.put_bytes(b"abc", str(target))
    assert shell.get_bytes(str(target), offset=1) == b"bc"
    assert names(target.parent) == ["file"]
    assert shell.exists(str(target))
    assert not shell.exists(f"{target}x")


def test_a_file_that_cannot_be_written_is_named(shell: Shell) -> None:
    with pytest.raises(TransferError, match=r"node-0:/proc/nowhere/file couldn't be written"):
        shell.put_bytes(b"x", "/proc/nowhere/file")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_is_named_and_leaves_nothing(shell: Shell, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], check=True)
    try:
        (disk / "file").write_bytes(b"old")
        with pytest.raises(DiskFull, match=f"disk full on node-0:{disk}/file"):
            shell.put_bytes(bytes(3 << 20), f"{disk}/file")
        assert names(disk) == ["file"]
        assert (disk / "file").read_bytes() == b"old"
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_copy_cut_in_the_middle_is_never_taken_for_whole(shell: Shell, server: Server, tmp_path: Path) -> None:
    target = tmp_path / "folder" / "file"
    shell.put_bytes(b"old", str(target))

    def cut() -> None:
        wait_until(lambda: any(name.endswith(".part") for name in names(target.parent)), "the copy's begin")
        for pid in server.sessions():
            os.kill(pid, signal.SIGKILL)

    cutter = threading.Thread(target=cut)
    cutter.start()
    with pytest.raises(ConnectionLost, match=str(target)):
        shell.put_bytes(bytes(60 << 20), str(target))
    cutter.join()
    assert target.read_bytes() == b"old"
    wait_until(lambda: names(target.parent) == ["file"], "the removal of the part")
