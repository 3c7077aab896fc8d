"""fab's command line where Fabric's own reading of it isn't ours: what stands after `--`, and what can't be understood.

Fabric takes it for an anonymous remote command for its own --hosts, joins the words by blanks, and refuses to start
when there are no hosts. So fabfile.py must call `after_dashes` once while it is loaded, which is before Fabric looks.
"""

from __future__ import annotations

import sys

import fabric.main
from invoke.exceptions import Exit, ParseError


def after_dashes() -> list[str]:
    """The words after the first `--`. Tells Fabric that they are taken, so that it looks for no hosts."""
    core = getattr(fabric.main.program, "core", None)
    if core is not None:
        core.remainder = ""
    words = sys.argv[1:]
    return words[words.index("--") + 1 :] if "--" in words else []


def refuse_what_cannot_be_read() -> None:
    """An unknown task, option or value ends with one sentence and exit code 2.

    Invoke's own 1 would read as "the run has failed", and a value of the wrong type as a traceback. fabfile.py calls it
    while it is loaded, which is before Invoke reads the tasks.
    """
    program = fabric.main.program
    read = program.parse_tasks

    def parse_tasks() -> None:
        try:
            read()
        except (ParseError, ValueError) as error:
            raise Exit(
                f"error: {error} (`fab --list` shows the tasks, `fab --help TASK` its options)", code=2
            ) from None

    program.parse_tasks = parse_tasks
