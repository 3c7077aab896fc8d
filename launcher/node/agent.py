"""torchrun, in this process, plus the two things that it doesn't tell: each rank's exit code, and when it exited.

torchrun's own exit code is 1 whatever happened, and it looks at its ranks only ten times a second. So each rank gets a
thread that waits for its end without collecting it (WNOWAIT) and tells the supervisor through a pipe, which works on a
full disk too.

    python RUN_FOLDER/node agent PIPE TORCHRUN_ARGUMENT …
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from launcher.node.processes import end_with_parent


def run_torchrun(pipe: int, arguments: Sequence[str]) -> int:
    """Runs torchrun to its end; returns its exit code."""
    # A supervisor killed by SIGKILL must not leave a training that nobody watches.
    end_with_parent(signal.SIGTERM)
    _watch_processes(pipe)
    # torch takes Popen's name when it is imported: so only now.
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    try:
        run(parse_args(list(arguments)))  # type: ignore[no-untyped-call]
    except (ChildFailedError, SignalException) as error:
        said = [line for line in str(error).splitlines() if line.strip("=- ")]  # without the frame around it
        print(f"torchrun: {said[0] if said else type(error).__name__}", file=sys.stderr)
        return 1
    except DistError as error:  # nobody listens, or somebody else does
        print(
            f"torchrun: the rendezvous failed, so repeat the same command: it takes another port: {error}",
            file=sys.stderr,
        )
        return 1
    return 0


def _watch_processes(pipe: int) -> None:
    """From here on, each rank that torchrun starts (it does so by `subprocess`) is told with its start and its exit."""

    class WatchedPopen(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._told = threading.Lock()
            rank = (options.get("env") or {}).get("RANK")
            if rank is None:
                self._told.acquire()  # not a rank: nothing to tell
                return
            _tell(pipe, {"event": "start", "rank": int(rank), "pid": self.pid})
            if hasattr(os, "waitid"):
                threading.Thread(target=self._wait_without_collecting, daemon=True).start()

        def poll(self) -> int | None:
            return self._ended(super().poll())

        def wait(self, timeout: float | None = None) -> int:
            code = super().wait(timeout)
            self._ended(code)
            return code

        def _wait_without_collecting(self) -> None:
            try:
                ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            except ChildProcessError:  # already collected: then `poll` or `wait` has told
                return
            if ended is not None:
                self._ended(ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)

        def _ended(self, code: int | None) -> int | None:
            if code is not None and self._told.acquire(blocking=False):
                _tell(pipe, {"event": "exit", "pid": self.pid, "exit_code": code, "at": time.time()})
            return code

    subprocess.Popen = WatchedPopen  # type: ignore[misc]


def _tell(pipe: int, event: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the supervisor is gone: SIGTERM is on its way
        os.write(pipe, json.dumps(event).encode() + b"\n")
