"""The process that a node hangs on: starts it, and ends it when its lifetime is over, with nobody's help.

    python guard.py DEADLINE_FILE -- COMMAND...

DEADLINE_FILE holds a Unix time; it may be rewritten while the node runs. When the time has come, or the command has
ended, or this process is told to end, everything with our TRAINSTACK_NODE in its environment is ended too (on Linux).
Stand-alone: only the standard library, because it outlives `pulumi up` and must not depend on the virtual environment.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

LOOK_AGAIN_S = 5.0  # how late a shortened lifetime may be noticed


def main(deadline_file: Path, command: list[str]) -> int:
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda _signal, _frame: over.set())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_tell_end, args=(child, over), daemon=True).start()
    while not over.is_set():
        try:
            left_s = float(deadline_file.read_text()) - time.time()
        except (OSError, ValueError):
            left_s = LOOK_AGAIN_S if deadline_file.parent.is_dir() else 0.0  # being rewritten, or the node was removed
        if left_s <= 0:
            break
        over.wait(min(left_s, LOOK_AGAIN_S))
    if child.poll() is None:
        child.kill()
    end_marked(os.environ.get("TRAINSTACK_NODE", ""))
    return 0


def _tell_end(child: subprocess.Popen[bytes], over: threading.Event) -> None:
    child.wait()
    over.set()


def end_marked(marker: str) -> None:
    """SIGKILL to every process with our marker, except this one. Twice, for what was just being started."""
    wanted = b"TRAINSTACK_NODE=" + os.fsencode(marker)
    for _ in range(2):
        for entry in Path("/proc").glob("[0-9]*"):
            pid = int(entry.name)
            try:
                if pid != os.getpid() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(pid, signal.SIGKILL)
            except OSError:
                continue  # ended meanwhile, or not ours to look at


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[sys.argv.index("--") + 1 :]))
