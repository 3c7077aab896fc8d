"""Makes the virtual environment of one lock file, and marks it complete at the very end.

python3 -c THIS ENVIRONMENT UV PYTHON   <  lock file

An environment can't be moved once it is made, so it is built in place: without its marker it counts as half-made, and
is removed and made again.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path


def main(environment: Path, uv: str, python: str) -> int:
    lock = sys.stdin.buffer.read()
    environment.parent.mkdir(parents=True, exist_ok=True)
    marker = environment / "trainstack.json"
    interpreter = environment / "bin" / "python"
    # Two bootstraps at once: the second waits here, and finds it made.
    with environment.with_name(environment.name + ".busy").open("wb") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        if marker.exists() and os.access(interpreter, os.X_OK):
            return 0
        if environment.exists():
            shutil.rmtree(environment)
        lock_file = environment.with_name(environment.name + ".lock")
        lock_file.write_bytes(lock)
        for command in (
            [uv, "--quiet", "venv", "--no-project", "--python", python, str(environment)],
            [uv, "--quiet", "pip", "sync", "--python", str(interpreter), "--require-hashes", str(lock_file)],
        ):
            done = subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
            if done.returncode != 0:
                return done.returncode
        part = marker.with_suffix(".part")
        with part.open("w", encoding="utf-8") as file:
            json.dump({"python": python, "uv": uv}, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(marker)
    return 0


if __name__ == "__main__":
    try:
        code = main(Path(sys.argv[1]), *sys.argv[2:])
    except OSError as error:
        sys.exit(f"{error.strerror}: {error.filename}")
    sys.exit(code)
