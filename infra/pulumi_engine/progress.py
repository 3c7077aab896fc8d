"""Runs a long command with a deadline, and says every few seconds what is going on."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class CommandFailed(Exception):
    """A command failed, could not be started or ran past its limit; the text says which, with its last words."""


def run_with_progress(
    argv: Sequence[str],
    *,
    what: str,
    limit_s: float,
    report: Callable[[str], object],
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    every_s: float = 10.0,
) -> str:
    """Run `argv` to its end and return its standard output.

    Every `every_s` seconds `report` gets one line with the seconds elapsed and the last line of standard error.
    Its whole process group is ended at `limit_s`, and when we are interrupted.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as messages:
        started = time.monotonic()
        try:
            process = subprocess.Popen(
                argv,
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=messages,
                start_new_session=True,
            )
        except OSError as error:
            raise CommandFailed(f"{argv[0]} can't be started ({error.strerror})") from error
        try:
            while True:
                elapsed = time.monotonic() - started
                try:
                    process.wait(timeout=max(0.01, min(every_s, limit_s - elapsed)))
                    break
                except subprocess.TimeoutExpired:
                    elapsed = time.monotonic() - started
                    if elapsed >= limit_s:
                        raise CommandFailed(f"{what} took longer than {limit_s:.0f} s and was ended") from None
                    report(f"{what}: {elapsed:.0f} s, {_last_lines(messages, 1) or 'working'}")
        finally:
            if process.poll() is None:
                _end_group(process)
        if process.returncode != 0:
            said = _last_lines(messages, 3) or _last_lines(output, 3) or "it said nothing"
            code = process.returncode
            ending = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise CommandFailed(f"{what} {ending}: {said}")
        output.seek(0)
        return output.read().decode(errors="replace")


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(timeout=3)
            return
        except subprocess.TimeoutExpired:
            continue


def _last_lines(stream: object, count: int) -> str:
    """The last `count` non-empty lines of a file that another process is writing, joined into one."""
    descriptor = stream.fileno()  # type: ignore[attr-defined]
    size = os.fstat(descriptor).st_size
    tail = os.pread(descriptor, 4096, max(0, size - 4096)).decode(errors="replace")
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    return " / ".join(lines[-count:])[-400:]
