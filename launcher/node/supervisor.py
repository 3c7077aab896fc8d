"""The supervisor of one run on one node: waits for the word to go, starts torchrun, watches, leaves nothing behind.

It lives detached from every terminal and needs no connection. Its life is the node's claim, its last act `state.json`.

waiting ──go──▶ running ──torchrun ended──▶ ended
   └── no word, cancelled ──────────────────────┘
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from launcher.node import processes
from launcher.node.channel import Channel
from launcher.node.layout import RunFolder, full_disk, read_json, write_state
from launcher.node.logs import Merger, last_lines
from launcher.node.network import has_interface, hold_free_port, interface_of

WAIT_FOR_GO_S = 120.0
"""Longest wait between the claim and the word to go: the user's machine may have died in between."""
PEERS_COME_S = 60.0
"""After the word to go, which all nodes get at once: how long the head waits for each to report."""
TICK_S = 0.15
STOPPED_WITH_CHECKPOINT = 75
"""EX_TEMPFAIL: what our trainer's ranks answer to a stop, once their checkpoint is complete."""

Reason = Literal["exit", "stop", "peer", "cancelled", "no-go"]


class CannotStart(Exception):
    """The spec can't be run on this node; says why in one sentence."""


@dataclass
class Rank:
    """What is known of one rank of this node."""

    rank: int
    pid: int
    exit_code: int | None = None
    """Negative for a signal; None while it runs or when nobody saw it end."""
    at: float | None = None
    """This node's clock when it ended."""


@dataclass
class Supervisor:
    folder: RunFolder
    spec: Mapping[str, Any]
    channel: Channel
    merger: Merger
    agent: subprocess.Popen[bytes] | None = None
    agent_exit: int | None = None
    ranks: dict[int, Rank] = field(default_factory=dict)
    reason: Reason = "exit"
    peer: str | None = None
    stop_at: float | None = None
    """Wall clock of the first wish to stop."""
    ending_since: float | None = None
    """Monotonic: when the first failure or a wish to stop was seen."""
    grace_s: float = 0.0
    term_sent: bool = False
    stop_wish: bool = False
    disk: str | None = None
    """Set when this node's disk was full as a rank failed: then the rank could hardly say so itself."""
    _events: int | None = None
    """The reading end of the pipe from torchrun's process."""
    _heard: bytes = b""

    def __post_init__(self) -> None:
        self.run, self.node = str(self.spec["run"]), str(self.spec["node"])
        self.state: dict[str, Any] = {
            "run": self.run,
            "node": self.node,
            "state": "waiting",
            "pid": os.getpid(),
            "start_time": processes.start_time(os.getpid()),
            "boot_id": processes.boot_id(),
            "claimed_at": time.time(),
        }

    # The life, in order.

    def prepare(self) -> dict[str, Any]:
        """Checks the spec against this node and opens the head's door. Returns what the user's machine must know."""
        address = str(self.spec["address"])
        wanted = self.spec.get("interface")
        if wanted is not None and not has_interface(wanted):
            raise CannotStart(f"{self.node} has no network interface {wanted!r} (`ip -br address` there lists them)")
        self.interface = wanted or interface_of(address)
        for path in self.spec["must_be_files"]:
            if not Path(path).is_file():
                raise CannotStart(f"{self.node}: {path} isn't there: run `fab bootstrap` again")
        answer: dict[str, Any] = {"pid": os.getpid()}
        if self.spec["node_rank"] == 0:
            try:
                answer["channel_port"] = self.channel.listen(address)
                answer["rendezvous_port"], self._held_port = hold_free_port(address)
            except OSError as error:
                raise CannotStart(
                    f"{self.node}: its private address {address} can't be listened on ({error.strerror}): if the "
                    "machine has another address by now, run `pulumi refresh`, then `pulumi up`"
                ) from None
        write_state(self.folder, self.state)
        return answer

    def live(self) -> None:
        """From the claim to the written end."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        processes.adopt_orphans()
        try:
            go = self._wait_for_go()
            if go is not None:
                self._start(go)
                while self.agent_exit is None:
                    self._look()
            self._finish()
        finally:
            self.channel.close()

    def _wait_for_go(self) -> dict[str, Any] | None:
        deadline = time.monotonic() + WAIT_FOR_GO_S
        while True:
            go = read_json(self.folder.go)
            if self.stop_wish or self.folder.stop.exists():
                self.reason = "cancelled"
                return None
            if go is not None:
                return go
            if time.monotonic() > deadline:
                self.reason = "no-go"
                return None
            self.channel.step(0.03)

    def _start(self, go: Mapping[str, Any]) -> None:
        if self.spec["node_rank"] != 0 and self.spec["nodes"] > 1:
            try:
                self.channel.connect(go["address"], go["channel_port"])
            except OSError as error:
                self.say(f"can't reach the head at [{go['address']}]:{go['channel_port']} ({error}): is a firewall on?")
                self.reason, self.peer = "peer", "the head"
                return self._skip()
        self._events, tell = os.pipe()
        os.set_blocking(self._events, False)
        output = os.open(self.folder.source("torchrun"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.agent = subprocess.Popen(
            torchrun_command(self.spec, self.folder, go, pipe=tell),
            cwd=self.spec["cwd"],
            env=environment(os.environ, self.spec, interface=self.interface),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=(tell,),
        )
        os.close(output)
        os.close(tell)
        self.state |= {"state": "running", "started_at": time.time(), "agent_pid": self.agent.pid}
        self._started = time.monotonic()
        write_state(self.folder, self.state)
        return None

    def _skip(self) -> None:
        self.agent_exit = 1

    def _look(self) -> None:
        """One tick: peers, output, ranks, wishes, deadlines."""
        for message in self.channel.step(TICK_S):
            self._hear(message)
        self._merge(flush=False)
        self._read_events()
        if self.stop_at is None and (self.stop_wish or self.folder.stop.exists()):
            self._begin_stop("stop requested")
        failed = self._first_failed()
        if failed is not None and self.ending_since is None:
            self._begin_failure(f"rank {failed.rank} ended with {exit_text(failed.exit_code)}", reason="exit")
        self._miss()
        self._press()
        assert self.agent is not None  # noqa: S101 - only called while it runs
        for pid, code in processes.reap().items():
            if pid == self.agent.pid:
                self.agent_exit = self.agent.returncode = code

    def _hear(self, message: Mapping[str, Any]) -> None:
        """A peer ended by failing or was lost: nothing can go on here. A peer that was stopped: we stop too."""
        peer = str(message.get("node"))
        if message["kind"] == "ended" and message.get("how") == "done":
            return
        if message["kind"] == "ended" and message.get("how") == "stop":
            self._begin_stop(f"{peer} was asked to stop")
        elif self.ending_since is None:
            self.peer = peer
            what = "ended with a failure" if message["kind"] == "ended" else "can't be reached any more"
            self._begin_failure(f"{peer} {what}", reason="peer")

    def _miss(self) -> None:
        """The head gives up on peers that never came: torchrun would wait ten minutes for them."""
        if self.spec["node_rank"] != 0 or self.ending_since is not None:
            return
        missing = sorted(set(self.spec["peers"]) - self.channel.met)
        if missing and time.monotonic() - self._started > PEERS_COME_S:
            self.peer = missing[0]
            self._begin_failure(f"{', '.join(missing)} didn't come within {PEERS_COME_S:.0f} s", reason="peer")

    def _begin_stop(self, why: str) -> None:
        if self.stop_at is not None:
            return
        self.stop_at = time.time()
        if self.ending_since is not None:
            return
        wish = read_json(self.folder.stop) or {}
        self.reason, self.ending_since = "stop", time.monotonic()
        self.grace_s = min(float(self.spec["grace_s"]), float(wish.get("grace_s", self.spec["grace_s"])))
        self.say(f"{why}: ranks may take {self.grace_s:.0f} s for a checkpoint")
        self._terminate()

    def _begin_failure(self, what: str, *, reason: Reason) -> None:
        self.reason, self.ending_since, self.grace_s = reason, time.monotonic(), self.spec["fail_grace_s"]
        self.disk = full_disk(self.folder.path)
        self.say(f"{what}: ending this node's ranks")
        self.channel.tell({"kind": "ended", "how": "fail"})

    def _press(self) -> None:
        """SIGTERM after the grace of a failure; SIGKILL for everything when the grace is over."""
        if self.ending_since is None:
            return
        waited = time.monotonic() - self.ending_since
        if self.reason != "stop" and waited > self.grace_s:
            self._terminate()
        limit = self.grace_s + 2 if self.reason == "stop" else 2 * self.grace_s
        if waited > limit:
            processes.end_all(self.run, self.node, below=os.getpid(), deadline_s=0)

    def _terminate(self) -> None:
        if not self.term_sent and self.agent is not None and self.agent_exit is None:
            self.term_sent = True
            self.agent.send_signal(signal.SIGTERM)

    def _finish(self) -> None:
        """Nothing left, all output in the log, the end written, peers told: in this order."""
        left = processes.end_all(self.run, self.node, below=os.getpid())
        self._read_events()
        ended = time.time()
        failure = self._failure()
        how = "stop" if self.reason == "stop" and failure is None else "fail" if self._is_failure(failure) else "done"
        self.channel.tell({"kind": "ended", "how": how})
        self.state |= {
            "state": "ended",
            "ended_at": ended,
            "duration_s": time.monotonic() - self._started if self.agent is not None else 0.0,
            "exit_code": self.agent_exit,
            "reason": self.reason,
            "peer": self.peer,
            "stop_at": self.stop_at,
            "ranks": [vars(rank) for rank in sorted(self.ranks.values(), key=lambda r: r.rank)],
            "first_failure": failure,
            "disk": self.disk or full_disk(self.folder.path),
            "left": processes.command_lines(left),
        }
        self._merge(flush=True)
        write_state(self.folder, self.state)

    # What happened.

    def _read_events(self) -> None:
        if self._events is None:
            return
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._events, 65536):
                self._heard += data
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            event = json.loads(line)
            if event["event"] == "start":
                self.ranks[event["pid"]] = Rank(rank=event["rank"], pid=event["pid"])
            elif (rank := self.ranks.get(event["pid"])) is not None and rank.exit_code is None:
                rank.exit_code, rank.at = event["exit_code"], event["at"]

    def _first_failed(self) -> Rank | None:
        """The rank that ended first with a code other than 0; none when it had stopped with a checkpoint, because that
        is a step of all ranks together and torchrun then ends the others."""
        ended = [rank for rank in self.ranks.values() if rank.exit_code not in (None, 0)]
        first = min(ended, key=lambda rank: rank.at or 0.0, default=None)
        return None if first is None or first.exit_code == STOPPED_WITH_CHECKPOINT else first

    def _failure(self) -> dict[str, Any] | None:
        """The first failing rank that no wish to stop had ended; else torchrun itself, when it failed by itself."""
        rank = self._first_failed()
        if rank is not None and (self.stop_at is None or (rank.at or 0.0) < self.stop_at):
            lines = last_lines(self.folder.source(f"rank-{rank.rank}"), 20)
            return {"rank": rank.rank, "exit_code": rank.exit_code, "at": rank.at, "lines": lines}
        stopped = any(r.exit_code == STOPPED_WITH_CHECKPOINT for r in self.ranks.values())
        if self.reason == "exit" and self.agent_exit not in (0, None) and not stopped:
            lines = last_lines(self.folder.source("torchrun"), 20)
            return {"rank": None, "exit_code": self.agent_exit, "at": time.time(), "lines": lines}
        return None

    def _is_failure(self, failure: Mapping[str, Any] | None) -> bool:
        return failure is not None or self.reason in ("peer", "cancelled", "no-go")

    # Small things.

    def say(self, text: str) -> None:
        """One line of our own in the node's log."""
        with contextlib.suppress(OSError), self.folder.source("supervisor").open("a", encoding="utf-8") as file:
            file.write(text + "\n")  # best effort: a full disk must not end the supervisor

    def _merge(self, *, flush: bool) -> None:
        with contextlib.suppress(OSError):  # a full disk: what wasn't copied stays in its source until there is room
            self.merger.step(flush=flush)

    def _on_signal(self, number: int, frame: object) -> None:  # noqa: ARG002 - the signature is Python's
        self.stop_wish = True


def torchrun_command(spec: Mapping[str, Any], folder: RunFolder, go: Mapping[str, Any], *, pipe: int) -> list[str]:
    """torchrun with a static rendezvous at an address; each rank goes through rank.py."""
    here = Path(__file__).parent
    python = str(spec["python"])
    return [
        python,
        str(here.parent.parent / "__main__.py"),
        "agent",
        str(pipe),
        f"--nnodes={spec['nodes']}",
        f"--node-rank={spec['node_rank']}",
        f"--nproc-per-node={spec['processes']}",
        f"--master-addr={go['address']}",
        f"--master-port={go['rendezvous_port']}",
        f"--rdzv-id={spec['run']}",
        f"--shutdown-timeout={int(spec['grace_s'])}",
        "--max-restarts=0",
        "--no-python",
        python,
        "-S",
        "-E",
        str(here / "rank.py"),
        str(folder.path),
        *spec["command"],
    ]


def environment(base: Mapping[str, str], spec: Mapping[str, Any], *, interface: str | None) -> dict[str, str]:
    """What the ranks see: the login's environment, our markers, and this node's share of threads."""
    python_path = [str(p) for p in spec["python_path"]]
    result = dict(base) | {
        "PATH": os.pathsep.join([str(Path(spec["python"]).parent), base.get("PATH", os.defpath)]),
        "PYTHONPATH": os.pathsep.join(python_path),
        "PYTHONUNBUFFERED": "1",  # a killed rank's last words are in the file, not in its memory
        "OMP_NUM_THREADS": str(max(1, int(spec["cpu_threads"]) // int(spec["processes"]))),
        processes.RUN_VARIABLE: str(spec["run"]),
        processes.NODE_VARIABLE: str(spec["node"]),
    }
    if interface is not None:
        result |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    return result


def exit_text(code: int | None) -> str:
    """ "exit code 3", "SIGKILL", for a message."""
    if code is None:
        return "an unknown exit code"
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def report_bug(folder: RunFolder) -> None:
    """Sends our own tracebacks, which nobody would see otherwise, to a file of the run."""
    descriptor = os.open(folder.path / "supervisor.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(null)
    os.close(descriptor)
    sys.stdout.flush()
