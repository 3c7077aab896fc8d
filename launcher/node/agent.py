"""torchrun, in this process, plus the two things that it doesn't tell: each rank's exit code, and when it exited.

torchrun's own exit code is 1 whatever happened. So a thread looks at each ended child before torchrun collects it
(WNOWAIT) and writes the exit to the run's events.

    python agent.py RUN_FOLDER TORCHRUN_ARGUMENT …
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path


def main() -> None:
    from launcher.node.processes import end_with_parent

    # A supervisor killed by SIGKILL must not leave a training that nobody watches.
    end_with_parent(signal.SIGTERM)
    events = Path(sys.argv[1]) / "events.jsonl"
    if hasattr(os, "waitid"):
        threading.Thread(target=_watch_children, args=(events,), daemon=True).start()
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    try:
        run(parse_args(sys.argv[2:]))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        # Repeats what the thread saw, except for a rank that ended before the thread looked.
        for failure in error.failures.values():
            _write(events, failure.pid, failure.exitcode)
        sys.exit(1)
    except SignalException:
        sys.exit(1)


def _watch_children(events: Path) -> None:
    seen: set[int] = set()
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:  # none started yet, or all collected
            ended = None
        if ended is None or ended.si_pid in seen:
            time.sleep(0.05)
            continue
        seen.add(ended.si_pid)
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        _write(events, ended.si_pid, code)


def _write(events: Path, pid: int, exit_code: int) -> None:
    line = json.dumps({"event": "exit", "pid": pid, "exit_code": exit_code, "at": time.time()})
    descriptor = os.open(events, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(descriptor, line.encode() + b"\n")
    os.close(descriptor)


if __name__ == "__main__":
    main()
