"""torchrun, in this process, plus the two things that it doesn't tell: each rank's exit code, and when it exited.

torchrun's own exit code is 1 whatever happened, and it looks at its ranks only ten times a second. So each rank gets a
thread that waits for its end without collecting it (WNOWAIT) and writes the exit to the run's events.

    python RUN_FOLDER/node agent RUN_FOLDER TORCHRUN_ARGUMENT …
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.node.processes import end_with_parent


def run_torchrun(folder: Path, arguments: Sequence[str]) -> int:
    """Runs torchrun to its end; returns its exit code."""
    # A supervisor killed by SIGKILL must not leave a training that nobody watches.
    end_with_parent(signal.SIGTERM)
    _watch_processes(folder / "events.jsonl")
    # torch takes Popen's name when it is imported: so only now.
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    try:
        run(parse_args(list(arguments)))  # type: ignore[no-untyped-call]
    except (ChildFailedError, SignalException) as error:
        print(f"torchrun: {str(error).strip().splitlines()[0]}", file=sys.stderr)
        return 1
    return 0


def _watch_processes(events: Path) -> None:
    """From here on, each process started by `subprocess` leaves its exit in `events`."""

    class WatchedPopen(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._told = threading.Lock()
            if hasattr(os, "waitid"):
                threading.Thread(target=self._wait_without_collecting, daemon=True).start()

        def poll(self) -> int | None:
            return self._tell(super().poll())

        def wait(self, timeout: float | None = None) -> int:
            code = super().wait(timeout)
            self._tell(code)
            return code

        def _wait_without_collecting(self) -> None:
            try:
                ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            except ChildProcessError:  # already collected: then `poll` or `wait` has told
                return
            if ended is not None:
                self._tell(ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)

        def _tell(self, code: int | None) -> int | None:
            if code is not None and self._told.acquire(blocking=False):
                _append(events, {"event": "exit", "pid": self.pid, "exit_code": code, "at": time.time()})
            return code

    subprocess.Popen = WatchedPopen  # type: ignore[misc]


def _append(path: Path, event: dict[str, Any]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(descriptor, json.dumps(event).encode() + b"\n")
    os.close(descriptor)
