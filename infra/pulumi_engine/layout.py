"""Where the engine's files are in a checkout, and the environment in which it finds them.

`activate` and `environment` must agree, so both take what `variables` says: `write_shell_variables` puts it into
.trainstack/environment.sh, which `activate` reads (no Python starts when a shell is opened).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from infra.errors import EngineError
from infra.pulumi_engine.files import write_atomically

# Set in the user's shell for another project, these would win over ours (or, PYTHONHOME, break our interpreter).
DROPPED = ("PULUMI_CONFIG_PASSPHRASE", "PYTHONHOME")


def state_folder(root: Path) -> Path:
    return root / ".trainstack"


def bin_folder(root: Path) -> Path:
    return state_folder(root) / "bin"


def venv_folder(root: Path) -> Path:
    return root / ".venv"


def passphrase_file(root: Path) -> Path:
    return state_folder(root) / "passphrase"


def backend_folder(root: Path) -> Path:
    return state_folder(root) / "pulumi"


def shell_variables_file(root: Path) -> Path:
    return state_folder(root) / "environment.sh"


def path_prefix(root: Path) -> list[str]:
    """The folders that go first on PATH."""
    return [str(bin_folder(root)), str(venv_folder(root) / "bin")]


def variables(root: Path) -> dict[str, str]:
    """The variables that point Pulumi and Python at this checkout, without PATH."""
    return {
        "VIRTUAL_ENV": str(venv_folder(root)),
        "PULUMI_HOME": str(state_folder(root) / "pulumi_home"),
        # Percent-encoded: the engine parses it as a URL, and "#", "?" or "%" in a folder's name would end or break it.
        # metadata=skip: no ".attrs" beside each file of the state; one that a kill left empty made the whole stack
        # unreadable ("failed to load checkpoint: EOF").
        "PULUMI_BACKEND_URL": "file://" + quote(str(backend_folder(root))) + "?metadata=skip",
        "PULUMI_CONFIG_PASSPHRASE_FILE": str(passphrase_file(root)),
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        # An ASCII locale can't say the name of a checkout in "/home/jörg", neither to the engine nor to the nodes.
        "PYTHONUTF8": "1",
    }


def environment(root: Path, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The whole environment for a sub-process that runs pulumi here: `base` (default: our own) with `variables` on top.

    Pass it as it is (`env=environment(root)`): merged over os.environ it couldn't take out what is in its way.
    PULUMI_STACK is left as it is, because it is the user's way to choose a stack.
    """
    root = root.resolve()
    result = {key: value for key, value in (os.environ if base is None else base).items() if key not in DROPPED}
    ours = path_prefix(root)
    others = [folder for folder in result.get("PATH", os.defpath).split(os.pathsep) if folder not in ours]
    return {**result, **variables(root), "PATH": os.pathsep.join(ours + others)}


def write_shell_variables(root: Path) -> None:
    """Write .trainstack/environment.sh for `activate`."""
    lines = ["# Written by make setup; `activate` reads it.", _guard(root)]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in variables(root).items()]
    lines += [f"unset {name}" for name in DROPPED]
    write_atomically(shell_variables_file(root), ("\n".join(lines) + "\n").encode())


def _guard(root: Path) -> str:
    """The line that stops the file from taking effect in a checkout that was moved or copied."""
    return f'[ "${{trainstack_here:-}}" = {shlex.quote(str(root))} ] || return 1'


def find_pulumi(root: Path) -> Path:
    """Path of the usable CLI; EngineError when set-up hasn't put one there, or the checkout was moved since."""
    root = root.resolve()
    programs = [bin_folder(root) / name for name in ("pulumi", "pulumi-language-python")]
    for program in programs:
        if not os.access(program, os.X_OK):
            raise EngineError(f"The Pulumi engine isn't ready: there is no {program}; run `make setup` in {root}.")
    try:
        written = shell_variables_file(root).read_text(encoding="utf-8")
    except OSError:
        written = ""
    if _guard(root) not in written.splitlines():
        raise EngineError(f"{root} was moved or only half set up: run `make setup` in it again.")
    return programs[0]
