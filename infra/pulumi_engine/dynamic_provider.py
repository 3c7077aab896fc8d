"""Pulumi's own dynamic provider, which ends with the engine: one whose engine was killed would live for ever.

python -u -P dynamic_provider.py [ENGINE_ADDRESS]
"""

import os
import runpy
import sys
import threading
import time
from pathlib import Path


def end_with(parent: int) -> None:
    """Ends this process within a second of the end of `parent`; whatever it was making is found by its name later."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))  # as `python -m pulumi.dynamic` has it: where the modules of a program are
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    runpy.run_module("pulumi.dynamic", run_name="__main__", alter_sys=True)
