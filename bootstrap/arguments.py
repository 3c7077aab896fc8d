"""What stands after `--` on fab's command line, word by word.

Fabric takes it for an anonymous remote command for its own --hosts, joins the words by blanks, and refuses to start
when there are no hosts. So fabfile.py must call `after_dashes` once while it is loaded, which is before Fabric looks.
"""

from __future__ import annotations

import sys

import fabric.main


def after_dashes() -> list[str]:
    """The words after the first `--`. Tells Fabric that they are taken, so that it looks for no hosts."""
    core = getattr(fabric.main.program, "core", None)
    if core is not None:
        core.remainder = ""
    words = sys.argv[1:]
    return words[words.index("--") + 1 :] if "--" in words else []
