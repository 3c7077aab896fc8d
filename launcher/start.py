"""From a wish to a running run: plan (pure checks, no network), then submit (claim, go).

Claims are taken in rank order, the head's first, so that of two `fab train` at once exactly one starts. Until the word
to go, nothing but the claims exists on the nodes; whatever fails before gives them back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import getpass
import os
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import yaml

from bootstrap.errors import BootstrapError
from bootstrap.fleet import Fleet
from infra.cluster import Cluster, Node
from launcher.errors import BusyError, LauncherError, PreparationError, UsageError
from launcher.nodes import say_go, start_supervisor, stop_all
from launcher.record import RunRecord, Runs, new_id, now_text

if TYPE_CHECKING:
    from bootstrap.prepare import CodeTree, Prepared

GRACE_S = 120.0
"""After a stop, ranks get so long for a last checkpoint; then SIGKILL. A checkpoint that is cut never counts."""
MAX_SCRIPT_FOLDER_MIB = 100
FAIL_GRACE_S = 5.0
"""After a failure, the other ranks get so long to fail by themselves, and as long again after SIGTERM."""
CHECK_TIMEOUT_S = 120


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run, checked as far as this machine can."""

    experiment: str
    recipe: Path | None
    recipe_on_node: str | None
    """Relative to the code there."""
    script: Path | None
    arguments: tuple[str, ...]
    """After the script."""
    settings: tuple[str, ...]

    @property
    def extra(self) -> tuple[Path, ...]:
        """What goes to the nodes beside the checkout's code."""
        if self.script is not None:
            return (self.script.parent,)
        return (self.recipe,) if self.recipe is not None else ()


def plan_recipe(root: Path, recipe: str, *, settings: Sequence[str], name: str | None, world_size: int) -> Plan:
    """A run of our trainer. UsageError for a recipe that the trainer refuses for so many ranks, with its sentence."""
    path = _recipe_file(root, recipe)
    inside = path.is_relative_to(root.resolve())
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {setting!r}: write --set key=value")
        if key == "output_dir" and not PurePosixPath(value).is_absolute():
            raise UsageError(f"--set {setting!r}: output_dir is a path on the nodes: make it absolute, or use --name")
    if name is not None:
        settings = [*settings, f"experiment={_checked_name(name)}"]
    _check_recipe(root, path, settings, world_size=world_size)
    return Plan(
        experiment=_experiment(path, settings),
        recipe=path,
        recipe_on_node=path.relative_to(root.resolve()).as_posix() if inside else path.name,
        script=None,
        arguments=(),
        settings=tuple(settings),
    )


def plan_script(script: str, *, arguments: Sequence[str], name: str | None) -> Plan:
    """A run of the user's own script. UsageError when it isn't a file, or its folder is too big to send each time."""
    path = Path(script).expanduser()
    if not path.is_file():
        what = "is a folder, not a script" if path.is_dir() else "doesn't exist"
        raise UsageError(f"--script {script!r}: {what} (looked in {Path.cwd()})")
    path = path.resolve()
    size_mib = _folder_bytes(path.parent) / 1024**2
    if size_mib > MAX_SCRIPT_FOLDER_MIB:
        raise UsageError(
            f"--script {script}: its folder {path.parent} holds {size_mib:.0f} MiB and is sent to each node; the limit "
            f"is {MAX_SCRIPT_FOLDER_MIB} MiB: put the script into a folder of its own"
        )
    return Plan(
        experiment=_checked_name(name) if name else re.sub(r"[^\w.-]+", "-", path.stem).lstrip(".-") or "script",
        recipe=None,
        recipe_on_node=None,
        script=path,
        arguments=tuple(arguments),
        settings=(),
    )


def submit(
    fleet: Fleet, plan: Plan, *, root: Path, prepared: Prepared, code: CodeTree, report: Callable[[str], None]
) -> RunRecord:
    """Claims the nodes and starts the run. On return torchrun is starting on every node, detached.

    Raises BusyError when another run is on, PreparationError (or bootstrap's errors) when a node can't take it; then no
    node is claimed any more. The record says failed; of a run that was refused for another there is none, so that
    attach, logs and stop without a name mean the run that is on.
    """
    runs = Runs(root)
    with _one_at_a_time(root, fleet.cluster.stack):
        record = make_record(fleet.cluster, plan, prepared=prepared, code=code)
        runs.save(record)
        try:
            record = _launch(fleet, record, plan, code=code)
        except BusyError:
            stop_all(fleet, record, grace_s=0)
            runs.forget(record)
            raise
        except BaseException as error:
            # Ctrl-C included: no node may stay claimed by a run that never started.
            with contextlib.suppress(BootstrapError, LauncherError):
                stop_all(fleet, record, grace_s=0)
            why = str(error) or "interrupted while it was being prepared"
            runs.save(dataclasses.replace(record, state="failed", why=why))
            raise
        runs.save(record)
        report(f"run {record.id} on {len(fleet.cluster.nodes)} nodes, {fleet.cluster.world_size} processes")
        report(f"  follow: fab attach --run {record.id}    stop: fab stop --run {record.id}")
        return record


def make_record(cluster: Cluster, plan: Plan, *, prepared: Prepared, code: CodeTree) -> RunRecord:
    """The record of a run about to be prepared."""
    head = cluster.head
    storage = cluster.shared_storage or f"{head.work_dir}/storage"
    given = [s.partition("=")[2] for s in plan.settings if s.startswith("output_dir=")]
    interpreters = {node.name: prepared.python[node.name] for node in cluster.nodes}
    return RunRecord(
        id=new_id(datetime.now(UTC)),
        stack=cluster.stack,
        experiment=plan.experiment,
        created_at=now_text(),
        command=tuple(command(head, plan, code=code, output_dir=storage)),
        recipe=plan.recipe.read_text("utf-8") if plan.recipe else None,
        settings=plan.settings,
        code_digest=code.digest,
        environment_digest=PurePosixPath(interpreters[head.name]).parent.parent.name,
        cluster=cluster.to_json(),
        interpreters=interpreters,
        output_dir=given[-1] if given else f"{storage}/{plan.experiment}",
        grace_s=GRACE_S,
    )


def command(node: Node, plan: Plan, *, code: CodeTree, output_dir: str) -> list[str]:
    """What each rank of `node` runs after the interpreter."""
    if plan.script is not None:
        return [f"{script_folder(plan.script, code, node)}/{plan.script.name}", *plan.arguments]
    settings = [f"output_dir={output_dir}", *plan.settings]
    return ["-m", "trainer", str(plan.recipe_on_node), *(word for s in settings for word in ("--set", s))]


def script_folder(script: Path, code: CodeTree, node: Node) -> str:
    """Where the folder of the user's script stands on the node."""
    return f"{code.path[node.name]}/{script.parent.name}"


def _launch(fleet: Fleet, record: RunRecord, plan: Plan, *, code: CodeTree) -> RunRecord:
    token = secrets.token_hex(16)
    specs = {
        node.name: node_spec(node, record, plan, cluster=fleet.cluster, code=code) | {"token": token}
        for node in fleet.cluster.nodes
    }
    head, *others = fleet.cluster.nodes
    answer = fleet.on_each(lambda s: start_supervisor(s, record, specs[s.node.name]), nodes=[head])
    at_head = _claimed(answer.require("claiming the node"), record)[head.name]
    if others:
        answers = fleet.on_each(lambda s: start_supervisor(s, record, specs[s.node.name]), nodes=others)
        _claimed(answers.require("claiming the nodes"), record)
    go = {key: at_head[key] for key in ("rendezvous_port", "channel_port")} | {"address": head.private.host}
    offsets = fleet.on_each(lambda s: say_go(s, record, go)).require("starting torchrun")
    where = f"[{head.private.host}]:{at_head['rendezvous_port']}"
    return dataclasses.replace(record, rendezvous=where, clock_offsets_s=dict(offsets), state="running")


def node_spec(node: Node, record: RunRecord, plan: Plan, *, cluster: Cluster, code: CodeTree) -> dict[str, Any]:
    """What the supervisor of one node must know (its run.json)."""
    path = code.path[node.name]
    output_dir = record.output_dir
    if cluster.shared_storage is None and not any(s.startswith("output_dir=") for s in plan.settings):
        output_dir = f"{node.work_dir}/storage/{plan.experiment}"
    words = command(node, plan, code=code, output_dir=output_dir)
    python = record.interpreters[node.name]
    main_file = words[0] if plan.script else f"{path}/trainer/__main__.py"
    return {
        "run": record.id,
        "node": node.name,
        "node_rank": node.rank,
        "nodes": len(cluster.nodes),
        "processes": node.processes,
        "cpu_threads": node.cpu_threads,
        "address": node.private.host,
        "interface": node.interface,
        "peers": [other.name for other in cluster.nodes if not other.is_head],
        "grace_s": record.grace_s,
        "fail_grace_s": FAIL_GRACE_S,
        "python": python,
        "python_path": [path],
        "cwd": script_folder(plan.script, code, node) if plan.script else path,
        "command": [python, *words],
        "must_be_files": [main_file],
        "by": f"{getpass.getuser()}@{socket.gethostname()}",
        "record": dataclasses.asdict(record),
    }


def _claimed(answers: Mapping[str, dict[str, Any]], record: RunRecord) -> Mapping[str, dict[str, Any]]:
    for name, answer in answers.items():
        if "busy" in answer:
            raise _busy(record.stack, name, answer["busy"])
        if not answer.get("ok"):
            raise PreparationError(f"{name}: the supervisor didn't start: look at it with `fab ssh --node {name}`")
    return answers


def _busy(stack: str, node: str, holder: Mapping[str, Any]) -> BusyError:
    run = holder.get("run", "(unknown)")
    if holder.get("unsupervised"):
        return BusyError(
            f"stack {stack}: processes of run {run} are left on {node}: clear them with `fab stop --run {run}`"
        )
    by = f" of {holder['by']}" if holder.get("by") else ""
    return BusyError(
        f"stack {stack}: run {run}{by} is on ({node}): follow it with `fab attach --run {run}` or end it with "
        f"`fab stop --run {run}`"
    )


@contextlib.contextmanager
def _one_at_a_time(root: Path, stack: str) -> Iterator[None]:
    """One preparation a stack on this machine; the claims on the nodes keep other machines out."""
    folder = root / ".trainstack" / "stacks" / stack
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / "train.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                f"stack {stack}: another `fab train` is being prepared right now: see `fab status`, follow it with "
                "`fab attach` or end it with `fab stop`"
            ) from None
        yield
    finally:
        os.close(descriptor)


def _check_recipe(root: Path, recipe: Path, settings: Sequence[str], *, world_size: int) -> None:
    """The trainer's own check, here and now: an error in a recipe costs no connection and no machine."""
    words = [sys.executable, "-m", "trainer", str(recipe), "--check", *(w for s in settings for w in ("--set", s))]
    try:
        done = subprocess.run(
            words,
            cwd=root,
            env=os.environ | {"WORLD_SIZE": str(world_size)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=CHECK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"{recipe}: the trainer's check didn't end within {CHECK_TIMEOUT_S} s") from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
        if done.returncode == 2:  # the trainer's own sentences, one for each thing that is wrong
            raise UsageError("\n".join(said))
        raise UsageError(said[-1] if said else f"{recipe}: the trainer refuses it (exit code {done.returncode})")


def _experiment(recipe: Path, settings: Sequence[str]) -> str:
    given = [s.partition("=")[2] for s in settings if s.startswith("experiment=")]
    if given:
        return _checked_name(given[-1])
    # BaseLoader: the name as it is written, as for the trainer, and not the number or the date that YAML sees in it.
    value = yaml.load(recipe.read_text("utf-8-sig"), Loader=yaml.BaseLoader)  # noqa: S506 - makes nothing but text
    name = value.get("experiment") if isinstance(value, dict) else None
    return _checked_name(str(name or recipe.stem))


def _checked_name(name: str) -> str:
    """An experiment's name becomes a folder on the nodes."""
    if not name or name.startswith((".", "-")) or not all(c.isalnum() or c in "-_." for c in name) or len(name) > 100:
        raise UsageError(
            f"experiment name {name!r}: use letters, digits, '-', '_' and '.', and begin with a letter or digit"
        )
    return name


def _recipe_file(root: Path, recipe: str) -> Path:
    """The recipe's absolute path: as seen from here, else from the checkout."""
    path = Path(recipe).expanduser()
    for candidate in (path, root / path):
        if candidate.is_file():
            return candidate.resolve()
    raise UsageError(f"--recipe {recipe!r}: there is no such file (looked in {Path.cwd()} and {root})")


def _folder_bytes(folder: Path) -> int:
    """Size of what would be sent; stops counting well above the limit."""
    total = 0
    for path, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        for name in files:
            with contextlib.suppress(OSError):
                total += (Path(path) / name).lstat().st_size
        if total > 2 * MAX_SCRIPT_FOLDER_MIB * 1024**2:
            break
    return total
