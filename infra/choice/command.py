"""`fab choose`: ask for offers, let the trainer say what fits, show, and write the stack file if that is asked for."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from infra.choice import stack_file, table
from infra.choice.assumptions import Assumptions
from infra.choice.rows import Candidate, Forecast, Row, candidates, rows, shapes
from infra.errors import NoOfferError, SpecError
from infra.offers import asking, wish
from infra.offers.wish import Wish
from infra.providers import MODULES

NODES = (1, 2, 4, 8)
_NO_BILL = "local"


def show(
    root: Path,
    recipe: str,
    *,
    settings: Sequence[str],
    asked: Wish,
    nodes: Sequence[int],
    provider: str | None,
    max_hours: float | None,
    offload: bool,
    assumed: Assumptions,
    as_json: bool,
    write: str | None,
) -> None:
    """Raises SpecError for what can't be, NoOfferError when nothing fits."""
    makable = sorted(set(MODULES) - {_NO_BILL})
    if provider is not None and provider not in makable:
        raise SpecError(f"--provider {provider!r} isn't one that this version rents from: take {', '.join(makable)}")
    print(f"asking for prices: at most {asking.DEADLINE_S:g} s", file=sys.stderr, flush=True)
    gathered = asking.gather(asked)
    sizes = [replace(asked, nodes=count, max_usd_per_hour=None) for count in nodes]
    fitting = [each for each in gathered.offers if any(wish.fits(each, size) for size in sizes)]
    found = candidates(fitting, nodes=nodes, providers=[provider] if provider else makable)
    cap = asked.max_usd_per_hour
    if cap is not None:
        found = [each for each in found if (each.offer.usd_per_hour_of(each.nodes) or math.inf) <= cap]
    if not found:
        raise NoOfferError("no machine fits what was asked for: `fab prices` with the same options says what there is")
    print(f"asking the trainer what fits, on {len(shapes(found))} kinds of cluster", file=sys.stderr, flush=True)
    forecast = ask_trainer(root, recipe, settings, found)
    made = rows(found, forecast, assumed)
    if max_hours is not None:
        made = [row for row in made if row.hours <= max_hours]
    notes = list(gathered.notes)
    if not offload and (in_host := [row for row in made if row.host_gib]):
        made = [row for row in made if not row.host_gib]
        notes.append(f"{len(in_host)} row(s) that need host memory for an offload are left out: --offload shows them")
    if not made:
        raise NoOfferError("; ".join([_why_none(forecast, max_hours), *notes[len(gathered.notes) :]]))
    render = table.document if as_json else table.text
    print(render(made, notes, forecast=forecast, assumed=assumed, now=datetime.now(UTC)))
    if write is not None:
        _write(made[0], root=root, stack=write, experiment=forecast.experiment)


def ask_trainer(root: Path, recipe: str, settings: Sequence[str], found: Sequence[Candidate]) -> Forecast:
    """In a process of its own: infra knows no torch. Raises SpecError with what the trainer says of the recipe."""
    command = [sys.executable, "-m", "trainer", "forecast", recipe, "--clusters", json.dumps(shapes(found))]
    command += [word for each in settings for word in ("--set", each)]
    # The recipe's path is the user's, from where he stands; the trainer is this checkout's.
    done = subprocess.run(
        command,
        env=_environment(root),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise SpecError(lines[-1] if lines else f"`python -m trainer forecast {recipe}` ended with {done.returncode}")
    try:
        return Forecast.model_validate_json(done.stdout)
    except ValidationError as error:
        said = error.errors()[0]["msg"]
        raise SpecError(f"the trainer's forecast can't be read ({said}): run `make setup`") from None


def _environment(root: Path) -> dict[str, str]:
    from infra.pulumi_engine import environment

    variables = environment(root)
    return {**variables, "PYTHONPATH": str(root)}


def _why_none(forecast: Forecast, max_hours: float | None) -> str:
    if forecast.flops_per_token is None:
        return "how much the recipe's model computes isn't known, so no hours and dollars can be predicted"
    if max_hours is not None and any(need.strategy for need in forecast.clusters):
        return f"nothing is done within {max_hours:g} h: raise --max-hours or --nodes"
    reasons = [need.reason for need in forecast.clusters]
    return f"the recipe fits on none of these machines; of the largest: {reasons[-1]}"


def _write(row: Row, *, root: Path, stack: str, experiment: str) -> None:
    path = stack_file.write(row, root=root, stack=stack, experiment=experiment)
    print(f"wrote {path}: next `pulumi stack init {stack}`, `pulumi preview --stack {stack}`", file=sys.stderr)


def numbers(text: str | None) -> tuple[int, ...]:
    """ "1,2,4" to (1, 2, 4); raises SpecError."""
    if text is None:
        return NODES
    words = text.split(",")
    if not all(word.strip().isdecimal() and 1 <= int(word) <= 512 for word in words):
        raise SpecError(f"--nodes {text!r} is no list of whole numbers from 1: write it as in --nodes 1,2,4")
    return tuple(sorted({int(word) for word in words}))


def amount(option: str, text: str | None, *, most: float = math.inf) -> float | None:
    """A number above 0; raises SpecError."""
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= most or math.isinf(value):
        least = f"above 0 and at most {most:g}" if most < math.inf else "above 0"
        raise SpecError(f"{option} {text!r} is no number {least}: write it as in {option} {min(most, 1.5) / 2:g}")
    return value


def assumptions(**given: Any) -> Assumptions:
    """The defaults, but for what was given."""
    return Assumptions(**{name: value for name, value in given.items() if value is not None})
