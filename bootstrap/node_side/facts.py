"""Everything that the steps want to know about a node, in one round trip.

python3 -c THIS WORK_DIR ENVIRONMENT CODE   ->   JSON on stdout
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

NEEDED = [3, 11]


def newest_python() -> tuple[str, list[int]]:
    """(path, [major, minor]) of the python3 on PATH, or of the newest python3.N if that one is too old."""
    ours = list(sys.version_info[:2])
    if ours < NEEDED:
        for minor in range(20, 10, -1):
            path = shutil.which(f"python3.{minor}")
            if path:
                return path, [3, minor]
    return sys.executable, ours


def is_complete(environment: Path) -> bool:
    """Marked as finished, and its interpreter (a link to the system's) still there."""
    return (environment / "trainstack.json").is_file() and os.access(environment / "bin" / "python", os.X_OK)


def find_uv(work_dir: Path) -> str | None:
    """The first uv that answers: on PATH, or the one that we brought."""
    for path in (shutil.which("uv"), str(work_dir / "bin" / "uv")):
        if path and os.access(path, os.X_OK):
            words = [path, "--version"]
            try:
                subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=20)
            except (OSError, subprocess.SubprocessError):
                continue
            return path
    return None


def main(work_dir: Path, environment: Path, code: Path) -> None:
    now = time.time()
    parent = work_dir
    while not parent.is_dir():
        parent = parent.parent
    python, version = newest_python()
    complete = is_complete(environment)
    facts = {
        "now": now,
        "python": python,
        "python_version": version,
        "system": f"{platform.system()} {platform.machine()}",
        "free_gib": shutil.disk_usage(parent).free / 1024**3,
        "writable_parent": str(parent) if os.access(parent, os.W_OK | os.X_OK) else None,
        "environment_exists": environment.exists(),
        "environment_complete": complete,
        "code_complete": code.is_dir(),
        "uv": None if complete else find_uv(work_dir),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
