"""The commands of the node's side. Each prints one JSON object (`tail` prints the log) and ends; none waits for long.

start RUN_FOLDER           claim the node, detach the supervisor; it then waits for `go`
go RUN_FOLDER              the word to go (JSON on stdin: address, rendezvous_port, channel_port)
status RUN_FOLDER…         what the node knows of these runs
stop RUN_FOLDER GRACE_S    ask, wait for the end, clean up after a lost supervisor
tail RUN_FOLDER OFFSET     the log from a byte offset until the run has ended
cat RUN_FOLDER OFFSET      the log from a byte offset as far as it is
agent PIPE …               torchrun (started by the supervisor only)
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.node import processes
from launcher.node.channel import Channel
from launcher.node.layout import (
    RESERVE_BYTES,
    Claim,
    RunFolder,
    claim_path,
    disk_error,
    read_json,
    write_json,
)
from launcher.node.logs import Merger, tail
from launcher.node.supervisor import CannotStart, Supervisor, report_bug


def main(arguments: Sequence[str]) -> int:
    command, *rest = arguments
    if command == "agent":
        from launcher.node.agent import run_torchrun

        return run_torchrun(int(rest[0]), rest[1:])
    if command in ("tail", "cat"):
        with contextlib.suppress(BrokenPipeError):
            tail_run(RunFolder(Path(rest[0])), int(rest[1]), wait=command == "tail")
        return 0
    folder = RunFolder(Path(rest[0]))
    if command == "start":
        answer = start(folder, scoped="--scoped" in rest)
    elif command == "go":
        write_json(folder.go, json.load(sys.stdin))
        answer = {"ok": True, "now": time.time()}
    elif command == "status":
        answer = {"now": time.time(), "runs": {path: status(RunFolder(Path(path))) for path in rest}}
    elif command == "stop":
        answer = stop(folder, float(rest[1]))
    else:
        raise SystemExit(f"unknown command {command!r}")
    if answer:
        print(json.dumps(answer), flush=True)
    return 0


def start(folder: RunFolder, *, scoped: bool) -> dict[str, Any]:
    """Claims the node and leaves a detached supervisor; the answer is written by whoever knows it first."""
    if not scoped and (prefix := scope_prefix(folder)):
        subprocess.run([*prefix, sys.executable, sys.argv[0], "start", str(folder.path), "--scoped"], check=True)
        return {}
    spec = read_json(folder.spec)
    if spec is None:
        return {"error": f"{folder.spec} can't be read"}
    claim = Claim(claim_path(folder, spec["node"]))
    holder = claim.holder()
    if not claim.take():
        return {"busy": holder}
    if holder and holder.get("run") != spec["run"] and processes.marked(holder["run"], spec["node"]):
        return {"busy": holder | {"unsupervised": True}}
    claim.sign({"run": spec["run"], "by": spec.get("by"), "since": time.time()})
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            os.close(reader)
            _supervise(folder, spec, writer)
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    return (
        json.loads(said) if said else {"error": f"the supervisor died at its start: see {folder.path}/supervisor.err"}
    )


def _supervise(folder: RunFolder, spec: dict[str, Any], writer: int) -> None:
    """The detached process: never returns."""
    code = 1
    try:
        answer: dict[str, Any]
        try:
            report_bug(folder)
            folder.source("x").parent.mkdir(exist_ok=True)
            folder.reserve.write_bytes(b"\0" * RESERVE_BYTES)
            supervisor = Supervisor(folder, spec, Channel(spec["node"], spec["token"]), Merger(folder))
            answer = {"ok": True, "now": time.time(), **supervisor.prepare()}
        except CannotStart as error:
            answer = {"error": str(error)}
        except OSError as error:
            answer = {"error": disk_error(error, folder.path)}
        os.write(writer, json.dumps(answer).encode())
        os.close(writer)
        if "ok" in answer:
            supervisor.live()
        code = 0
    finally:
        if code:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)


def status(folder: RunFolder) -> dict[str, Any]:
    """The node's state of a run: absent, waiting, running, ended, or lost (its supervisor is gone without an end)."""
    state = read_json(folder.state)
    spec = read_json(folder.spec)
    if state is None:
        return {"state": "absent"}
    if state["state"] != "ended" and not _is_alive(state):
        state = read_json(folder.state) or state  # it may have ended between the two looks
        if state["state"] != "ended":
            state["state"] = "lost"
    if spec is not None and state["state"] == "lost":
        state["left"] = processes.command_lines(processes.marked(spec["run"], spec["node"]))
    return state


def stop(folder: RunFolder, grace_s: float) -> dict[str, Any]:
    """Asks the supervisor, waits for the end, kills what a lost supervisor left. Safe to repeat; absent is success."""
    state = read_json(folder.state)
    spec = read_json(folder.spec)
    if state is None or spec is None:
        return {"state": "absent", "did": False}
    did = False
    if state["state"] != "ended" and _is_alive(state):
        did = True
        with contextlib.suppress(OSError):  # on a full disk the signal alone must do
            write_json(folder.stop, {"grace_s": grace_s, "at": time.time()})
        with contextlib.suppress(ProcessLookupError):
            os.kill(state["pid"], signal.SIGTERM)
        deadline = time.monotonic() + min(grace_s, spec["grace_s"]) + 20
        while _is_alive(state) and time.monotonic() < deadline:
            time.sleep(0.1)
        if _is_alive(state):
            os.kill(state["pid"], signal.SIGKILL)
    left = processes.marked(spec["run"], spec["node"])
    did = did or bool(left)
    processes.end_all(spec["run"], spec["node"])
    _merge_rest(folder, spec["node"])
    return status(folder) | {"did": did}


def tail_run(folder: RunFolder, offset: int, *, wait: bool) -> None:
    """`tail` until the state says ended, or the supervisor is gone (then the rest is merged here first)."""

    def over() -> bool:
        state = status_brief(folder)
        if state == "lost":
            spec = read_json(folder.spec)
            if spec is not None:
                _merge_rest(folder, spec["node"])
        return not wait or state in ("ended", "lost", "absent")

    tail(folder, offset, output=1, over=over)


def status_brief(folder: RunFolder) -> str:
    """Like `status`, without looking for what is left."""
    state = read_json(folder.state)
    if state is None:
        return "absent"
    if state["state"] == "ended" or _is_alive(state):
        return str(state["state"])
    state = read_json(folder.state) or state
    return "ended" if state["state"] == "ended" else "lost"


def _merge_rest(folder: RunFolder, node: str) -> None:
    """Copies what a dead supervisor didn't. Under the node's claim, so that only one does it."""
    claim = Claim(claim_path(folder, node))
    try:
        if claim.take():
            with contextlib.suppress(OSError):
                Merger(folder).step(flush=True)
    finally:
        claim.close()


def _is_alive(state: dict[str, Any]) -> bool:
    return processes.is_same(state["pid"], started=state.get("start_time"), boot=state.get("boot_id"))


def scope_prefix(folder: RunFolder) -> list[str]:
    """How to leave the login session's control group where systemd rules, so that a logout kills nothing."""
    if not Path("/run/systemd/system").is_dir() or shutil.which("systemd-run") is None:
        return []
    prefix = ["systemd-run", "--scope", "--quiet", "--collect", f"--unit=trainstack-{folder.path.name}"]
    if os.geteuid() == 0:
        return prefix
    user = subprocess.run(
        ["loginctl", "show-user", str(os.geteuid()), "--property=Linger"], capture_output=True, check=False
    )
    return [prefix[0], "--user", *prefix[1:]] if user.stdout.strip() == b"Linger=yes" else []
