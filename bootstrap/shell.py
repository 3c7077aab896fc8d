"""One node: commands and files over its connection, in bytes.

Commands go over paramiko channels and not through Fabric's runner, which decodes output and reads the caller's stdin.
Files go over the same kind of channel: it takes one round trip, fsyncs, and names a full disk where SFTP only
says "Failure".
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import paramiko

from bootstrap.connection import ATTEMPT_S, Link
from bootstrap.errors import (
    BootstrapError,
    ConnectionLost,
    DiskFull,
    RemoteError,
    RemoteTimeout,
    TransferError,
    excerpt,
)
from infra.cluster import Node

_CHUNK = 1 << 16
_LOOK_S = 0.5
_MARK = re.compile(rb"trainstack-group (\d+)\n")
_START = 'echo "trainstack-group $$" >&2; "$@"; exit $?'
"""sshd made the shell that runs this the leader of a process group, and `exec` kept its pid: so $$ names the group. The
shell stays as the parent and turns a death by signal into exit code 128 + signal (paramiko would say -1)."""
_END = """\
kill -TERM "-$1" 2>/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    kill -0 "-$1" 2>/dev/null || exit 0
    sleep 0.1
done
kill -KILL "-$1" 2>/dev/null
"""
_PUT = """\
import errno, os, sys
path, mode, size = sys.argv[1], int(sys.argv[2], 8), int(sys.argv[3])
part = f"{path}.{os.getpid()}.part"
got = 0
try:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        while data := sys.stdin.buffer.read(1 << 16):
            file.write(data)
            got += len(data)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())
    if got == size:
        os.replace(part, path)
    else:
        sys.exit(f"only {got} of {size} bytes came")
except OSError as error:
    sys.stderr.write(error.strerror or str(error))
    sys.exit(28 if error.errno in (errno.ENOSPC, errno.EDQUOT) else 1)
finally:
    if os.path.lexists(part):
        os.unlink(part)
"""
_PUT_DISK_FULL = 28
_MARK_WAIT_S = 2.0
_REFUSAL_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)


@dataclass(frozen=True, kw_only=True)
class Completed:
    """How a command ended, and what it wrote, byte for byte."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class Shell:
    """Commands and files on one node. Raises ConnectError, ConnectionLost and what each method says."""

    def __init__(self, link: Link) -> None:
        self.node: Node = link.node
        self._link = link

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 60,
        check: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        """Runs `argv` and waits. The command reads `stdin`, then end of file; ours isn't touched.

        `env` becomes part of the command line, which others on the node can read: no secrets. Raises RemoteTimeout,
        and RemoteError when `check` and the exit code isn't 0.
        """
        if env:
            argv = ["env", *(f"{name}={value}" for name, value in env.items()), *argv]
        output: list[bytes] = []
        command = _Command(self._link, argv, stdin=io.BytesIO(stdin), timeout_s=timeout_s)
        exit_code = command.finish(output.append)
        if check and exit_code != 0:
            raise RemoteError(self.node.name, _short(argv), exit_code=exit_code, stderr=command.stderr)
        return Completed(exit_code=exit_code, stdout=b"".join(output), stderr=command.stderr)

    def stream(
        self,
        argv: Sequence[str],
        on_output: Callable[[bytes], None],
        *,
        stdin: bytes = b"",
        timeout_s: float | None = None,
    ) -> int:
        """Runs `argv` and hands its stdout to `on_output` as it comes; returns the exit code.

        A connection that ends first is ConnectionLost, never an exit code. Raises RemoteTimeout.
        """
        return _Command(self._link, argv, stdin=io.BytesIO(stdin), timeout_s=timeout_s).finish(on_output)

    def put_bytes(self, data: bytes, path: str, *, mode: int = 0o644) -> None:
        """Writes a whole file or nothing, making its folder. Raises DiskFull or TransferError."""
        self._put(io.BytesIO(data), len(data), path, mode=mode)

    def put_file(self, local: Path, path: str, *, mode: int = 0o644) -> None:
        """Copies a local file, whole or not at all. Raises DiskFull or TransferError."""
        with local.open("rb") as file:
            self._put(file, local.stat().st_size, path, mode=mode)

    def get_bytes(self, path: str, *, offset: int = 0) -> bytes:
        """A file's bytes from `offset` on. Raises RemoteError when it can't be read."""
        return self.run(["tail", "-c", f"+{offset + 1}", path], timeout_s=600).stdout

    def exists(self, path: str) -> bool:
        return self.run(["test", "-e", path], check=False).exit_code == 0

    def _put(self, file: BinaryIO, size: int, path: str, *, mode: int) -> None:
        # Room for 100 kB/s; what stands still for longer than that is as good as cut.
        argv = ["python3", "-c", _PUT, path, f"{mode:o}", str(size)]
        command = _Command(self._link, argv, stdin=file, timeout_s=60 + size / 1e5)
        try:
            exit_code = command.finish(lambda _: None)
        except (ConnectionLost, RemoteTimeout) as error:
            raise type(error)(f"{error} (while copying to {path}; the file there wasn't changed)") from None
        if exit_code == _PUT_DISK_FULL:
            raise DiskFull(f"disk full on {self.node.name}:{path}: make room there; nothing incomplete was left")
        if exit_code != 0:
            said = excerpt(command.stderr) or f"exit code {exit_code}"
            raise TransferError(f"{self.node.name}:{path} couldn't be written: {said}")


class _Command:
    """One command on one channel, from its start to its exit code."""

    def __init__(
        self, link: Link, argv: Sequence[str], *, stdin: BinaryIO, timeout_s: float | None, urgent: bool = False
    ) -> None:
        self._link = link
        self._what = _short(argv)
        self._line = "exec " + shlex.join(["sh", "-c", _START, "sh", *argv])
        self._stdin = stdin
        self._timeout_s = timeout_s
        self._urgent = urgent  # goes on while the link is being closed
        self._stderr = bytearray()
        self._marked = threading.Event()  # the group's number has come

    @property
    def stderr(self) -> bytes:
        """What the command wrote there, without our own mark."""
        return _MARK.sub(b"", bytes(self._stderr), count=1)

    def finish(self, on_output: Callable[[bytes], None]) -> int:
        """Starts the command, passes its output on, and returns its exit code."""
        with self._link.command():
            channel = self._start()
            over = False
            try:
                exit_code = self._follow(channel, on_output)
                over = True
                return exit_code
            except ConnectionLost:
                over = True
                raise
            finally:
                if not over:
                    # The mark was sent before the first output, but another thread reads it: it may be a moment late.
                    self._marked.wait(_MARK_WAIT_S)
                channel.close()
                if not over:  # too late, Ctrl-C, or the caller's own error: nothing of it stays on the node
                    self._end_group()

    def _start(self) -> paramiko.Channel:
        """A channel on which the command runs.

        A server with few sessions may accept the channel and then refuse the command. It says so, thus nothing ran,
        and asking again is safe; silence says nothing, so it is a lost connection.
        """
        for pause_s in _REFUSAL_PAUSES_S:
            channel = self._link.channel()
            channel.settimeout(ATTEMPT_S)
            try:
                channel.exec_command(self._line)
                return channel
            except TimeoutError:
                channel.close()
                break
            except (paramiko.SSHException, EOFError, OSError):
                channel.close()
                if not channel.get_transport().is_active():
                    break
                time.sleep(pause_s)
        raise self._lost("before the command began")

    def _follow(self, channel: paramiko.Channel, on_output: Callable[[bytes], None]) -> int:
        deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        transport = channel.get_transport()
        threads = [
            threading.Thread(target=pump, args=(channel,), daemon=True) for pump in (self._pump_in, self._pump_err)
        ]
        for thread in threads:
            thread.start()
        while data := self._receive(channel, deadline):
            on_output(data)
        while not channel.status_event.wait(self._slice(deadline)):
            pass
        if channel.exit_status == -1:
            alive = transport.is_active()
            raise self._lost("the session there was killed" if alive else "its exit code is unknown")
        for thread in threads:
            thread.join(ATTEMPT_S)
        return int(channel.exit_status)

    def _receive(self, channel: paramiko.Channel, deadline: float | None) -> bytes:
        while True:
            channel.settimeout(self._slice(deadline))
            with contextlib.suppress(TimeoutError):
                return bytes(channel.recv(_CHUNK))

    def _slice(self, deadline: float | None) -> float:
        """How long to wait before looking again. Raises RemoteTimeout when time is up, Interrupted when closing."""
        if not self._urgent:
            self._link.check_open()
        if deadline is None:
            return _LOOK_S
        left = deadline - time.monotonic()
        if left <= 0:
            raise RemoteTimeout(
                f"{self._link.node.name}: `{self._what}` didn't end within {self._timeout_s:g} s and was stopped: "
                f"{excerpt(self.stderr) or 'it said nothing on stderr'}"
            )
        return min(left, _LOOK_S)

    def _lost(self, how: str) -> ConnectionLost:
        name = self._link.node.name
        return ConnectionLost(f"{name}: connection lost during `{self._what}`: {how}; run the same again")

    def _pump_in(self, channel: paramiko.Channel) -> None:
        # A command may end without reading what it was given: then the channel closes, which isn't an error.
        with contextlib.suppress(OSError, EOFError):
            while data := self._stdin.read(_CHUNK):
                while data:
                    with contextlib.suppress(TimeoutError):
                        sent = channel.send(data)
                        if sent == 0:
                            return
                        data = data[sent:]
            channel.shutdown_write()

    def _pump_err(self, channel: paramiko.Channel) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                data = channel.recv_stderr(_CHUNK)
                if not data:
                    return
                self._stderr += data
                if not self._marked.is_set() and _MARK.search(self._stderr):
                    self._marked.set()

    def _end_group(self) -> None:
        """Ends what is left of the command on the node, as far as it can be reached."""
        found = _MARK.search(bytes(self._stderr))
        if found is None:
            return
        with contextlib.suppress(BootstrapError):
            argv = ["sh", "-c", _END, "sh", found[1].decode()]
            command = _Command(self._link, argv, stdin=io.BytesIO(b""), timeout_s=10, urgent=True)
            command.finish(lambda _: None)


def _short(argv: Sequence[str]) -> str:
    """A command for a message: scripts given as one word are left out."""
    words = [word if len(word) <= 80 and "\n" not in word else "…" for word in argv]
    return shlex.join(words).replace("'…'", "…")
