"""The command line: `python -m trainer RECIPE` trains or checks; `baseline RECIPE` scores byte frequencies."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer import config, recipe_file, strategies
from trainer.errors import Stopped, TrainerError


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code; an error is one sentence on standard error, of every rank that has it."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    baseline = words[:1] == ["baseline"]
    options = _parser(baseline).parse_args(words[1:] if baseline else words)
    try:
        recipe = recipe_file.load(options.recipe, options.set)
        if baseline:
            _baseline(recipe, as_json=options.json)
        elif options.check:
            world = int(os.environ.get("WORLD_SIZE", "1"))
            config.accumulation_steps(recipe, world)
            strategies.check(recipe, world)
            print(f"{options.recipe}: the recipe is valid")
        else:
            from trainer.train import train  # torch takes seconds to import: only when it is needed

            train(recipe)
    except TrainerError as error:
        # Only a stop is sure to be the same on all ranks. A report shows the last lines of whichever failed first.
        if os.environ.get("RANK", "0") == "0" or not isinstance(error, Stopped):
            print(error, file=sys.stderr, flush=True)
        return error.exit_code
    return 0


def _parser(baseline: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer" + (" baseline" if baseline else ""),
        description=__doc__,
        epilog="example: torchrun --nproc-per-node 4 -m trainer trainer/recipes/demo.yaml --set training.steps=100",
        allow_abbrev=False,
    )
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="recipe file (YAML)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one recipe key")
    if baseline:
        parser.add_argument("--json", action="store_true", help="print one JSON object")
    else:
        parser.add_argument("--check", action="store_true", help="check the recipe and exit")
    return parser


def _baseline(recipe: config.Recipe, *, as_json: bool) -> None:
    from trainer.data.baseline import held_out_loss

    loss = held_out_loss(recipe)
    print(json.dumps({"held_out_loss": loss}) if as_json else f"held-out loss {loss:.4f} nats per token (byte unigram)")


if __name__ == "__main__":
    sys.exit(main())
