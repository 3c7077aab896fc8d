"""The command line: `python -m trainer RECIPE` trains or checks a recipe; a verb in its place does something else."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer import config, recipe_file, strategies
from trainer.errors import Stopped, TrainerError
from trainer.launched import agent, world_size

# verb → (help, module with main(arguments) → exit code). A recipe of such a name is reached as ./prepare.
VERBS = {
    "keys": ("list the keys of a recipe: default, meaning, what they may hold", "trainer.keys"),
    "prepare": ("turn text, JSONL, Parquet or a Hugging Face dataset into token shards", "trainer.data.prepare"),
    "verify": ("read every shard of a prepared dataset and compare it with the manifest", "trainer.data.verify"),
    "footprint": ("predict the memory per rank under every strategy, and recommend one", "trainer.footprint"),
    "forecast": (
        "say which strategy fits and what is to be computed, for several clusters",
        "trainer.forecast",
    ),
    "export": ("write a checkpoint as safetensors that transformers opens", "trainer.export"),
    "baseline": ("score byte frequencies on the held-out part: the loss to beat", "trainer.data.baseline"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code; an error is one sentence on standard error, of every rank that has it."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _speak_utf8()
    agent()  # later it may be killed, and another process be our parent
    try:
        if words and words[0] in VERBS:
            return int(importlib.import_module(VERBS[words[0]][1]).main(words[1:]))
        return _train(words)
    except TrainerError as error:
        # Only a stop is sure to be the same on all ranks. A report shows the last lines of whichever failed first.
        if os.environ.get("RANK", "0") == "0" or not isinstance(error, Stopped):
            print(error, file=sys.stderr, flush=True)
        return error.exit_code


def _train(words: Sequence[str]) -> int:
    options = _parser().parse_args(words)
    recipe = recipe_file.load(options.recipe, options.set)
    world = world_size()
    config.accumulation_steps(recipe, world)
    strategies.check(recipe, world)
    if options.check:
        from trainer.data.opening import check_here  # numpy and fsspec too

        for note in check_here(recipe):
            print(note)
        print(f"{options.recipe}: the recipe is valid")
    else:
        from trainer.train import train  # torch takes seconds to import: only when it is needed

        train(recipe)
    return 0


def _parser() -> argparse.ArgumentParser:
    verbs = "\n".join(f"  {verb:10} {text}" for verb, (text, _) in VERBS.items())
    parser = argparse.ArgumentParser(
        prog="python -m trainer",
        description=__doc__,
        epilog=f"verbs (python -m trainer VERB --help):\n{verbs}\n\n"
        "example: torchrun --nproc-per-node 4 -m trainer trainer/recipes/demo.yaml --set training.steps=100",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="recipe file (YAML)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one recipe key")
    parser.add_argument("--check", action="store_true", help="check the recipe, and shards on this machine, and exit")
    return parser


def _read_utf8() -> None:
    """Starts this process again in Python's UTF-8 mode when it read its words by another encoding.

    An SSH session often has no locale. Then a path or key in the recipe, which is UTF-8, and the same one on the
    command line would be different texts, and no file of that name could be opened.
    """
    if sys.getfilesystemencoding() != "utf-8":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606 - our own words


def _speak_utf8() -> None:
    """An SSH session often has no locale, and then Python would print only ASCII."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")


if __name__ == "__main__":
    _read_utf8()
    sys.exit(main())
