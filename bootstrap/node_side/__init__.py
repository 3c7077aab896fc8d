"""Scripts that run on a node, one file each: standard library only, sent as text with each call, answering in JSON.

They are written for Python 3.8, because a node whose Python is too old must still be able to say so.
"""

from __future__ import annotations

from importlib import resources


def script(name: str) -> str:
    """The text of one script, for `python3 -c`."""
    return resources.files(__name__).joinpath(f"{name}.py").read_text("utf-8")
