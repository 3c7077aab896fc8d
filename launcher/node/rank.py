"""Becomes one rank: notes its process id, sends its whole output to one file, then replaces itself by the command.

Started by torchrun in place of the command, without site packages, so that it costs milliseconds. Writing straight to
a file means that no line can be lost, whoever is killed.

    python -S -E rank.py RUN_FOLDER COMMAND ARGUMENT …
"""

import json
import os
import sys
import time


def main() -> None:
    folder, command = sys.argv[1], sys.argv[2:]
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    output = os.open(
        os.path.join(folder, "sources", f"rank-{rank}.log"),  # noqa: PTH118 - pathlib would double the start time
        os.O_WRONLY | os.O_CREAT | os.O_APPEND,
        0o644,
    )
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    event = {"event": "start", "rank": rank, "local_rank": local_rank, "pid": os.getpid(), "at": time.time()}
    events = os.open(os.path.join(folder, "events.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)  # noqa: PTH118
    os.write(events, json.dumps(event).encode() + b"\n")
    os.close(events)
    os.execv(command[0], command)  # noqa: S606 - an argument list, no shell


if __name__ == "__main__":
    main()
