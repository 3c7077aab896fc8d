"""All sources asked at once, each in a process of its own that is ended at the deadline; the snapshot for the rest.

A process because gpuhunt waits without a limit, and because threads that wait can't be ended: not by a deadline, and
not by Ctrl-C.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter

from infra.offers import snapshot
from infra.offers.offer import Offer
from infra.offers.sources import SNAPSHOT, SOURCES, Answer, Source
from infra.offers.wish import Wish

DEADLINE_S = 20.0
ANSWER, WISH = TypeAdapter(Answer), TypeAdapter(Wish)
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Gathered:
    offers: tuple[Offer, ...]
    notes: tuple[str, ...]
    """One sentence for each source that told nothing of a provider, and what stands in for it, if anything."""


def gather(wish: Wish, *, sources: Mapping[str, Source] = SOURCES, deadline_s: float = DEADLINE_S) -> Gathered:
    """Offers of every provider by the best source that answered, and what couldn't be asked.

    Raises nothing of a source's own: a source that fails is a note.
    """
    return combined(ask_all(wish, sources=sources, deadline_s=deadline_s), sources=sources, rest=snapshot.offers())


def combined(answers: Mapping[str, Answer], *, sources: Mapping[str, Source], rest: tuple[Offer, ...]) -> Gathered:
    """For each provider the first answer in the order of `sources`; `rest` where there is none. Pure."""
    told_by: dict[str, str] = {}
    for key, source in sources.items():
        for provider in source.providers:
            if provider not in answers[key].problems:
                told_by.setdefault(provider, key)
    offers = [each for key, answer in answers.items() for each in answer.offers if told_by.get(each.provider) == key]
    notes: dict[str, list[str]] = {}
    for answer in answers.values():
        for provider, problem in answer.problems.items():
            instead = sources[told_by[provider]].name if provider in told_by else SNAPSHOT
            notes.setdefault(f"{problem}; {instead} stands in", []).append(provider)
    for provider in sorted(told_by.keys() - {each.provider for each in offers}):
        notes.setdefault(f"{sources[told_by[provider]].name} has nothing like that now", []).append(provider)
    return Gathered(
        offers=(*offers, *(each for each in rest if each.provider not in told_by)),
        notes=tuple(f"{', '.join(providers)}: {sentence}" for sentence, providers in notes.items()),
    )


def ask_all(
    wish: Wish,
    *,
    sources: Mapping[str, Source],
    deadline_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Answer]:
    """An answer of each source; one that failed or was too late has a problem for each of its providers."""
    until = clock() + deadline_s
    with ExitStack() as started:
        asked = {key: started.enter_context(_asked(key, wish)) for key in sources}
        return {
            key: _answer(each, sources[key], left_s=max(0.0, until - clock()), deadline_s=deadline_s)
            for key, each in asked.items()
        }


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """A process that asks one source. Its words go to files: a full pipe would stop it while others are waited for."""

    process: subprocess.Popen[bytes]
    out: IO[bytes]
    err: IO[bytes]


@contextmanager
def _asked(key: str, wish: Wish) -> Iterator[_Asked]:
    """It has ended afterwards, whatever happens."""
    command = [sys.executable, "-m", "infra.offers", key, WISH.dump_json(wish).decode()]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        try:
            yield _Asked(process=process, out=out, err=err)
        finally:
            process.kill()
            process.wait()


def _answer(asked: _Asked, source: Source, *, left_s: float, deadline_s: float) -> Answer:
    try:
        code = asked.process.wait(timeout=left_s)
    except subprocess.TimeoutExpired:
        return failed(source, f"{source.name} didn't answer in {deadline_s:g} s")
    if code == 0:
        return ANSWER.validate_json(_all(asked.out))
    lines = _all(asked.err).decode(errors="replace").split("\n")
    reason = next((line.strip() for line in reversed(lines) if line.strip()), f"exit code {code}")
    return failed(source, f"{source.name} couldn't be asked ({reason})")


def _all(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def failed(source: Source, problem: str) -> Answer:
    return Answer(problems=dict.fromkeys(source.providers, problem))
