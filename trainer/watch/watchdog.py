"""Ends a hang: a thread that watches this rank's progress, and says which rank the others wait for before it ends.

It also looks for what a blocked loop would not see: a notice file, the end of torchrun's process, another rank's wish
to stop, the time limits.
"""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import torch.distributed as dist

from trainer.config import WatchSection
from trainer.distributed import Processes
from trainer.errors import GraceOver, Stalled
from trainer.launched import orphaned
from trainer.watch import beats, flight_recorder
from trainer.watch.beats import Beat
from trainer.watch.stop import StopFlag

START, DATA, READY, GRADIENTS, UPDATE, EVALUATION, SAVE = (
    "start",
    "waiting for data",
    "waiting for all ranks to have data",
    "gradients",
    "optimizer step",
    "evaluation",
    "saving",
)
_PATIENCE = 3  # times watch.stall_s for the start, the first step (compilation) and saves
_STORE_S = 10.0  # for an answer of the store
_LOOK_S = 0.5  # between looks for the verdict of the rank that stalled first


class Watchdog:
    """Runs beside the loop, which calls `at` whenever it begins something."""

    def __init__(
        self,
        here: Processes,
        config: WatchSection,
        stop: StopFlag,
        *,
        output: Path,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        """end: what ends this process with an exit code, though the loop is blocked."""
        self._here, self._config, self._stop, self._output, self._end = here, config, stop, output, end
        self._store = dist.PrefixStore("watch", here.store.clone())
        self._began = self._progress = time.monotonic()
        self._phase, self._step, self._ticks, self._allowed = START, 0, 0, _PATIENCE * config.stall_s
        self._first_step: int | None = None
        self._beat_s = min(10.0, max(0.2, config.stall_s / 60))
        self._number = 0
        self._over, self._ending = threading.Event(), threading.Event()
        self._host = socket.gethostname()
        self._threads = [
            threading.Thread(target=self._send_beats, name="beats", daemon=True),
            threading.Thread(target=self._watch, name="watchdog", daemon=True),
        ]

    def __enter__(self) -> Watchdog:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._ending.is_set():
            # Another rank ended before us, and so the collective failed: the verdict that is on its way says more.
            self._threads[1].join()
        self._over.set()
        faulthandler.cancel_dump_traceback_later()
        for thread in self._threads:
            thread.join(_STORE_S)

    def at(self, phase: str, step: int) -> None:
        """The loop begins `phase` of `step`; whatever it did before is finished. Costs no communication."""
        if self._first_step is None and step:
            self._first_step = step
        slow = phase in (START, SAVE) or step == self._first_step
        self._allowed = (_PATIENCE if slow else 1) * self._config.stall_s
        self._phase, self._step = phase, step
        self._ticks += 1
        self._progress = time.monotonic()

    # ---- the thread that talks to the store

    def _send_beats(self) -> None:
        told = False
        while not self._over.wait(self._beat_s):
            self._number += 1
            try:
                beats.write(self._store, self._beat())
                if self._stop.raised and not told:
                    self._store.set("stop", f"{self._stop.reason} on rank {self._here.rank}")
                    told = True
                elif not self._stop.raised and self._store.check(["stop"]):
                    told = True
                    self._stop.set(self._store.get("stop").decode())
            except RuntimeError:
                return  # the store is gone: what that means shows in the loop, or at the stall deadline

    def _beat(self) -> Beat:
        return Beat(
            rank=self._here.rank,
            host=self._host,
            pid=os.getpid(),
            number=self._number,
            ticks=self._ticks,
            step=self._step,
            phase=self._phase,
        )

    # ---- the thread that decides

    def _watch(self) -> None:
        pause, config = min(1.0, self._config.stall_s / 10), self._config
        looked = time.monotonic()
        while not self._over.wait(pause):
            # A thread in C, for a hang in which no Python thread gets to run any more; put off each time we run.
            faulthandler.dump_traceback_later(config.stall_s + 60, exit=True, file=sys.__stderr__ or 2)
            now = time.monotonic()
            if now - looked > 10 * pause:  # this whole process was suspended: that time doesn't count
                self._progress += now - looked
            looked = now
            if config.notice_file is not None and Path(config.notice_file).exists():
                self._stop.set(f"notice file {config.notice_file}")
            if orphaned():
                self._stop.set(f"torchrun's process on {self._host} is gone")
            if config.max_duration is not None and now - self._began > config.max_duration:
                self._stop.set(f"watch.max_duration of {config.max_duration:g} s is over")
            if self._stop.raised and now - self._stop.since > config.grace_s:
                self._say(
                    f"asked to stop {config.grace_s:g} s ago ({self._stop.reason}), and no checkpoint is complete "
                    f"(step {self._step}, {self._phase}); the run will go on from an older one: raise watch.grace_s."
                )
                self._end_process(GraceOver.exit_code)
                return
            if now - self._progress > self._allowed:
                self._stalled(now - self._progress)
                return

    def _stalled(self, seconds: float) -> None:
        self._ending.set()
        verdict = self._verdict()
        if self._over.is_set():
            return  # the loop came through after all
        self._say(
            f"stalled: nothing finished for {seconds:.0f} s (step {self._step}, {self._phase}). {verdict} "
            "The stacks of this rank follow."
        )
        faulthandler.dump_traceback(file=sys.__stderr__ or 2, all_threads=True)
        path = beats.bounded(lambda: flight_recorder.dump(self._output, self._here.rank), _STORE_S)
        if path is not None:
            self._say(f"the flight recorder's last collectives are in {path}")
        self._over.wait(4 * _LOOK_S)  # the others read the verdict; without torchrun the store lives in rank 0
        self._end_process(Stalled.exit_code)

    def _verdict(self) -> str:
        """The first rank that gets here looks; the others repeat what it found, because ended ranks are silent too."""
        first = beats.bounded(lambda: self._store.add("stalled", 1) == 1, _STORE_S)
        pause = max(3 * self._beat_s, 5.0)
        if first is False:
            # Asked for, not waited for: a store's client does one thing at a time, and this rank's beats go on.
            deadline = time.monotonic() + pause + 3 * _STORE_S
            while time.monotonic() < deadline and not self._over.wait(_LOOK_S):
                found = beats.bounded(self._read_verdict, _STORE_S)
                if found is None:
                    break  # the store doesn't answer
                if found:
                    return found
        before = beats.bounded(lambda: beats.read(self._store, self._here.world), _STORE_S)
        self._over.wait(pause)
        after = beats.bounded(lambda: beats.read(self._store, self._here.world), _STORE_S)
        verdict = beats.blame(before, after)
        beats.bounded(lambda: self._store.set("verdict", verdict), _STORE_S)
        return verdict

    def _read_verdict(self) -> str:
        return self._store.get("verdict").decode() if self._store.check(["verdict"]) else ""

    def _end_process(self, code: int) -> None:
        if not self._over.is_set():  # else the loop came through after all
            self._end(code)

    def _say(self, text: str) -> None:
        with suppress(OSError, ValueError):  # who read the output may be gone, and this thread must go on
            print(f"rank {self._here.rank}: {text}", file=sys.stderr, flush=True)
