"""The checkout's own Pulumi backend: passphrase, folder for the state, and the stack `local`."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
from pathlib import Path

from infra.errors import EngineError
from infra.pulumi_engine.files import write_atomically
from infra.pulumi_engine.layout import backend_folder, environment, find_pulumi, passphrase_file, state_folder

STACK = "local"
LIMIT_S = 120


def initialise(root: Path) -> None:
    """Make passphrase, backend and stack `local` where they are missing; what is there is never changed.

    A stack that the user has selected stays selected. Raises EngineError when the engine refuses, or when the
    passphrase of existing stacks is gone.
    """
    root = root.resolve()
    pulumi = find_pulumi(root)
    project = _project_name(root)
    if _make_passphrase(root):
        _drop_foreign_salts(root)
    backend_folder(root).mkdir(parents=True, exist_ok=True)
    (state_folder(root) / "pulumi_home").mkdir(exist_ok=True)
    if not _stack_file(root, project).is_file():
        _run([str(pulumi), "stack", "init", STACK, "--non-interactive"], root)
    if _run([str(pulumi), "stack", "--show-name", "--non-interactive"], root, check=False).returncode != 0:
        _run([str(pulumi), "stack", "select", STACK, "--non-interactive"], root)


def is_initialised(root: Path) -> bool:
    """Whether `initialise` would find nothing to do; asks the files only."""
    root = root.resolve()
    try:
        return passphrase_file(root).is_file() and _stack_file(root, _project_name(root)).is_file()
    except EngineError:
        return False


def _stack_file(root: Path, project: str) -> Path:
    return backend_folder(root) / ".pulumi" / "stacks" / project / f"{STACK}.json"


def _project_name(root: Path) -> str:
    try:
        text = (root / "Pulumi.yaml").read_text(encoding="utf-8")
    except OSError as error:
        raise EngineError(
            f"{root / 'Pulumi.yaml'} can't be read ({error.strerror}): is {root} a whole checkout?"
        ) from error
    found = re.search(r"^name:\s*[\"']?([\w.-]+)", text, flags=re.MULTILINE)
    if found is None:
        raise EngineError(f"{root / 'Pulumi.yaml'} has no `name:`: restore the file from git.")
    return found[1]


def _make_passphrase(root: Path) -> bool:
    """Whether a passphrase was made now."""
    path = passphrase_file(root)
    if path.exists():
        return False
    stacks = sorted(backend_folder(root).glob(".pulumi/stacks/*/*.json"))
    if stacks:
        # A new passphrase couldn't open them, and they may stand for machines that cost money.
        raise EngineError(
            f"{path} is gone, but there are stacks that it opens ({', '.join(found.stem for found in stacks)}): "
            "put the file back, or remove what the stacks made by hand and then the folder "
            f"{backend_folder(root)}."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written beside and linked into place: never half there, and never over another process's.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(secrets.token_urlsafe(32) + "\n")
        path.hardlink_to(temporary)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True


def _drop_foreign_salts(root: Path) -> None:
    """Take the `encryptionsalt` of another passphrase out of stack files without secrets; the engine adds ours.

    It writes one into each stack file, and one that came along by git or a copy reads as "incorrect passphrase".
    """
    for path in sorted((root / "stacks").glob("Pulumi.*.yaml")):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith("encryptionsalt:")]
        if kept != lines and not any("secure:" in line for line in lines):
            write_atomically(path, "".join(kept).encode(), mode=path.stat().st_mode & 0o777)


def _run(argv: list[str], root: Path, *, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    what = " ".join(argv[1:3])
    # PULUMI_STACK would be taken for the selected stack.
    settings = {name: value for name, value in environment(root).items() if name != "PULUMI_STACK"}
    try:
        done = subprocess.run(
            argv, cwd=root, env=settings, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"`pulumi {what}` took longer than {LIMIT_S} s in {root}: run `make setup` again.") from error
    if check and done.returncode != 0:
        said = " ".join(done.stderr.decode(errors="replace").split()).removeprefix("error: ")[-600:]
        raise EngineError(f"`pulumi {what}` failed in {root}: {said}")
    return done
