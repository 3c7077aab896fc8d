"""`python -m infra.destroy`: end a stack, and prove it. What `make destroy` runs.

The engine first (it knows the order), then the provider's own answer on what is still there: `pulumi destroy` that
exits with 0 is no proof that billing stopped. What a killed `pulumi up` left outside the state is found by its tag
and removed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from infra import leftovers, receipt
from infra.errors import AccessError, ContractError, EngineError, InfraError, ProviderError, SpecError
from infra.providers.base import Deployment
from infra.pulumi_engine import environment, find_pulumi
from infra.stack import current_stack, project_root, read_cluster

NO_STACK = "no stack named"
_ENDING_S = 10.0


def destroy(root: Path, stack: str) -> None:
    """Destroy `stack` and everything with its tag. Repeating it, or having nothing to destroy, is success.

    Raises EngineError when the engine can't go on, LeftoversError while anything is left, SpecError for a stack that
    nobody knows.
    """
    try:
        cluster = read_cluster(root, stack)
    except ContractError:
        cluster = None  # never up, or half of it: there is still something to look for
    refuse_beside_an_engine(root, stack)
    _await_plug_ins(root, stack)
    # Machines first: the engine would end them after the addresses and gateways that hang on them.
    try:
        problems = leftovers.end_machines(root, stack)
    except AccessError:
        raise  # the engine could do nothing either
    except ProviderError as error:
        problems = [str(error)]
    for problem in problems:
        print(problem, file=sys.stderr)  # it is tried again below
    failure = _destroy_by_engine(root, stack)
    # The sweep comes also, and above all, when the engine failed.
    others = leftovers.sweep(root, stack)
    shutil.rmtree(Deployment(root=root, stack=stack).gang_folder, ignore_errors=True)  # the record of what has ended
    if failure is not None:
        # What a killed `up` had made without the state's knowing stood in the engine's way, and is gone now.
        failure = _destroy_by_engine(root, stack)
    if failure is not None:
        raise failure
    if cluster is None and not stack_exists(root, stack):
        raise SpecError(
            f"nothing was destroyed: there is no stack {stack}, neither in Pulumi's state nor in "
            f"{Deployment(root=root, stack=stack).stack_file}: name it with --stack (make destroy STACK=…)"
        )
    if others is not None:
        raise others
    print(receipt.text(cluster) if cluster else f"stack {stack}: nothing was up, nothing was charged")


def stack_exists(root: Path, stack: str) -> bool:
    """Whether the checkout has the stack's file, or the engine its state. A mistyped name isn't a destroyed stack."""
    if Deployment(root=root, stack=stack).stack_file.exists():
        return True
    return NO_STACK not in _pulumi(root, stack, "config").stderr


def _destroy_by_engine(root: Path, stack: str) -> EngineError | None:
    """Why the engine could not; None when it has, or there is no such stack."""
    try:
        release_lock(root, stack)
    except EngineError as error:
        return error
    for arguments in (
        # A killed `up` leaves "pending creates" that stop the engine; the sweep finds what they made.
        ("refresh", "--clear-pending-creates", "--yes", "--skip-preview", "--suppress-outputs"),
        ("destroy", "--yes", "--skip-preview", "--suppress-outputs", "--continue-on-error"),
    ):
        done = _pulumi(root, stack, *arguments)
        if NO_STACK in done.stderr:
            return None
        sys.stdout.write(done.stdout)
        if done.returncode != 0:
            return EngineError(
                f"`pulumi {arguments[0]} --stack {stack}` failed (exit {done.returncode}): {_last_line(done)}: "
                "mend that and run `make destroy` again; `fab leftovers` shows what is still there"
            )
    return None


def refuse_beside_an_engine(root: Path, stack: str) -> None:
    """Raises EngineError while a pulumi command holds the stack's lock and lives: it would make what we end."""
    for _, lock in _locks(root, stack):
        if lock.get("hostname") != socket.gethostname() or not _ends(lock.get("pid")):
            raise EngineError(
                f"stack {stack}: a pulumi command (process {lock.get('pid')} on {lock.get('hostname')}) is at work: "
                "let it end or interrupt it, then run `make destroy` again"
            )


def release_lock(root: Path, stack: str) -> None:
    """Drop the backend's lock of an engine that was killed. Raises EngineError when the engine still lives."""
    refuse_beside_an_engine(root, stack)
    for path, _ in _locks(root, stack):
        done = _pulumi(root, stack, "cancel", "--yes")
        if done.returncode != 0:
            raise EngineError(f"stack {stack}: its stale lock {path} could not be released: {_last_line(done)}")
        return


def _await_plug_ins(root: Path, stack: str) -> None:
    """What a killed engine had begun goes on in its plug-in until that sees its end: it may still make a machine."""
    deadline = time.monotonic() + _ENDING_S * 3
    while left := _orphans(root):
        if time.monotonic() >= deadline:
            raise EngineError(
                f"stack {stack}: process {left[0]} of a killed `pulumi` is still at work and may make machines: end "
                "it, then run `make destroy` again"
            )
        time.sleep(0.1)


def _orphans(root: Path) -> list[int]:
    """Process ids of this checkout's dynamic provider whose engine is gone; Linux alone tells."""
    program = "infra/pulumi_engine/dynamic_provider.py"
    programs = {os.fsencode(place / program) for place in (root, root.resolve())}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if programs.isdisjoint((folder / "cmdline").read_bytes().split(b"\0")):
                continue
            parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
        except (OSError, IndexError):
            continue  # it has just ended
        if not _is_engine(parent):
            found.append(int(folder.name))
    return found


def _locks(root: Path, stack: str) -> list[tuple[Path, dict[str, Any]]]:
    found = []
    for path in sorted((root / ".trainstack" / "pulumi" / ".pulumi" / "locks").rglob(f"{stack}/*.json")):
        # One that is being written or removed this moment: the engine will say.
        with contextlib.suppress(OSError, ValueError):
            found.append((path, dict(json.loads(path.read_text(encoding="utf-8")))))
    return found


def _ends(pid: object) -> bool:
    """Whether the engine `pid` is gone, or goes within a moment: one that was just killed still shows in the list."""
    deadline = time.monotonic() + _ENDING_S
    while _is_engine(pid):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.1)
    return True


def _is_engine(pid: object) -> bool:
    """Whether process `pid` lives and is a pulumi: a killed one's number may belong to another program by now."""
    if sys.platform == "linux":  # `ps` is missing on slim images
        try:
            name, _, rest = Path(f"/proc/{int(str(pid))}/stat").read_text(errors="replace").rpartition(")")
        except (OSError, ValueError):
            return False
        state = rest.split()[0]
    else:
        done = subprocess.run(["ps", "-o", "stat=,comm=", "-p", str(pid)], capture_output=True, text=True, check=False)
        state, _, name = done.stdout.strip().partition(" ")
    return "pulumi" in name and not state.startswith("Z")  # Z: ended, and its parent hasn't noticed


def _pulumi(root: Path, stack: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(find_pulumi(root)), *arguments, "--stack", stack, "--non-interactive"],
        cwd=root,
        env=environment(root),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (done.stdout + "\n" + done.stderr).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error:")]
    return (errors or lines or ["it said nothing"])[-1]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m infra.destroy",
        description="Destroy a stack, then ask the provider itself what is left; exit 6 while anything is.",
        epilog="example: python -m infra.destroy --stack local",
    )
    parser.add_argument("--stack", help="stack name (default: the selected one)")
    options = parser.parse_args()
    root = project_root()
    try:
        destroy(root, options.stack or current_stack(root))
    except InfraError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main())
