"""The user's machine talking to the supervisors: one short command a node and question, all nodes at once."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bootstrap.errors import BootstrapError
from bootstrap.fleet import Fleet, Shell
from infra.cluster import Node
from launcher.errors import PreparationError
from launcher.record import RunRecord, from_json, is_id
from launcher.states import NodeSays

_PACKAGE = Path(__file__).parent

_INSTALL = """\
import errno, json, os, shutil, sys
folder = sys.argv[1]
try:
    for name, text in json.load(sys.stdin).items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
except OSError as error:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    what = "disk full" if full else error.strerror
    print(json.dumps({"error": f"{what} at {error.filename or folder}: make room or correct its rights there"}))
    sys.exit(0)
os.execv(sys.executable, [sys.executable, os.path.join(folder, "node"), "start", folder])
"""
"""Writes the supervisor and the spec, then becomes `start`: one round trip for all of it."""

_ASK = 'if test -x "$0" && test -e "$1"; then exec "$0" "$@"; else echo "{}"; fi'
"""Runs the node's side of a run, or says {} where the run (or its environment) isn't there."""
_READ = 'if test -x "$0" && test -e "$1"; then exec "$0" "$@"; fi'
"""The same for a command whose output is the log itself: nothing where there is no run."""


def start_supervisor(shell: Shell, record: RunRecord, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Installs and starts the supervisor of `record` on one node. Returns its answer: ok, busy or an error.

    Raises PreparationError for an answer that says why the node can't take the run.
    """
    folder = record.folder_on(shell.node.work_dir)
    files = node_files() | {"run.json": json.dumps(spec)}
    done = shell.run(
        [record.interpreters[shell.node.name], "-c", _INSTALL, folder], stdin=json.dumps(files).encode(), timeout_s=60
    )
    answer = _answer(shell.node, done.stdout)
    if "error" in answer:
        raise PreparationError(f"{shell.node.name}: {answer['error']}")
    return answer


def node_files() -> dict[str, str]:
    """The supervisor's code as it stands in a run's folder: path -> text. `python RUN_FOLDER/node COMMAND` runs it."""
    files = {f"node/launcher/node/{path.name}": path.read_text("utf-8") for path in (_PACKAGE / "node").glob("*.py")}
    files["node/launcher/__init__.py"] = (_PACKAGE / "__init__.py").read_text("utf-8")
    files["node/__main__.py"] = files["node/launcher/node/__main__.py"]
    return files


def say_go(shell: Shell, record: RunRecord, go: Mapping[str, Any]) -> float:
    """The word to go; returns the node's clock minus ours in seconds (as good as half a round trip)."""
    before = time.time()
    answer = ask(shell, record, ["go"], stdin=json.dumps(go).encode())
    return float(answer.get("now", before)) - (before + time.time()) / 2


def ask(
    shell: Shell, record: RunRecord, command: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60
) -> dict[str, Any]:
    """One command of the node's side about `record`; {} where the node doesn't know the run."""
    name, *rest = command
    done = shell.run(node_command(shell.node, record, name, *rest), stdin=stdin, timeout_s=timeout_s)
    return _answer(shell.node, done.stdout)


def node_command(node: Node, record: RunRecord, name: str, *rest: str) -> list[str]:
    """The argument list that runs the node's side of `record`."""
    folder = record.folder_on(node.work_dir)
    script = _READ if name in ("tail", "cat") else _ASK
    return ["sh", "-c", script, record.interpreters[node.name], f"{folder}/node", name, folder, *rest]


def ask_all(fleet: Fleet, record: RunRecord) -> list[NodeSays]:
    """What each node of the run says now; a node that can't be asked says "unreachable"."""
    outcomes = fleet.on_each(lambda shell: ask(shell, record, ["status"], timeout_s=20))
    return [
        node_says(node, record, outcomes.results.get(node.name), outcomes.errors.get(node.name))
        for node in fleet.cluster.nodes
    ]


def node_says(
    node: Node, record: RunRecord, answer: Mapping[str, Any] | None, error: BootstrapError | None
) -> NodeSays:
    """One node's answer, typed."""
    if answer is None:
        return NodeSays(node=node.name, rank=node.rank, state="unreachable", facts={}, why=str(error))
    facts = answer.get("runs", {}).get(record.folder_on(node.work_dir), {"state": "absent"})
    offset = record.clock_offsets_s.get(node.name, 0.0)
    return NodeSays(node=node.name, rank=node.rank, state=facts["state"], facts=facts, clock_offset_s=offset)


def stop_all(fleet: Fleet, record: RunRecord, *, grace_s: float) -> tuple[dict[str, bool], dict[str, BootstrapError]]:
    """Stops the run on every node and waits for it: (node -> had it anything to stop, node -> why not asked)."""
    timeout_s = min(grace_s, record.grace_s) + 60
    outcomes = fleet.on_each(lambda shell: ask(shell, record, ["stop", str(grace_s)], timeout_s=timeout_s))
    return {name: bool(answer.get("did")) for name, answer in outcomes.results.items()}, dict(outcomes.errors)


def record_on_head(fleet: Fleet, run: str) -> RunRecord | None:
    """The record of a run that another machine started, as the head keeps it; None when the head has no such run."""
    head = fleet.cluster.head
    path = f"{head.work_dir}/runs/{run}/run.json"
    shell = fleet.shell(head.name)
    if not is_id(run) or not shell.exists(path):
        return None
    try:
        spec = json.loads(shell.get_bytes(path))
    except ValueError:
        return None
    return from_json(spec.get("record")) if isinstance(spec, dict) else None


def _answer(node: Node, output: bytes) -> dict[str, Any]:
    try:
        value = json.loads(output)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        said = output[-200:].decode("utf-8", "replace")
        raise PreparationError(f"{node.name}: the supervisor's answer can't be read: {said!r}")
    return value
