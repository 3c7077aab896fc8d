"""Becomes one rank: sends its whole output to one file, then replaces itself by the command.

Started by torchrun in place of the command, without site packages, so that it costs milliseconds. Writing straight to
a file means that no line can be lost, whoever is killed.

    python -S -E rank.py RUN_FOLDER COMMAND ARGUMENT …
"""

import os
import sys


def main() -> None:
    folder, command = sys.argv[1], sys.argv[2:]
    path = os.path.join(folder, "sources", f"rank-{int(os.environ['RANK'])}.log")  # noqa: PTH118 - quicker than pathlib
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.execv(command[0], command)  # noqa: S606 - an argument list, no shell


if __name__ == "__main__":
    main()
