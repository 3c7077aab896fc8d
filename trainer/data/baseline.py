"""The loss that needs no neural network: token frequencies of the training part, scored on the held-out windows."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer import recipe_file, strict_json
from trainer.config import Recipe
from trainer.data import opening
from trainer.data.batches import IGNORED, Samples
from trainer.errors import ConfigError

_ROWS = 256  # samples read at a time


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainer baseline",
        description=__doc__,
        epilog="example: python -m trainer baseline trainer/recipes/demo.yaml",
        allow_abbrev=False,
    )
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="recipe file (YAML)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one recipe key")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    loss = held_out_loss(recipe_file.load(options.recipe, options.set))
    text = f"held-out loss {loss:.4f} nats per token (token frequencies)"
    print(strict_json.encode({"held_out_loss": loss}) if options.json else text)
    return 0


def held_out_loss(recipe: Recipe) -> float:
    """Nats per token of a unigram model with add-one smoothing."""
    data = opening.open_data(recipe, vocabulary=None)
    if data.held_out is None:
        raise ConfigError("data: there is no held-out part to score; prepare the data with --split-share above 0.")
    counts = 1.0 + _count(data.training, data.training.count, vocabulary=data.vocabulary)
    nats = -np.log(counts / counts.sum())  # [vocabulary]
    held_out = _count(data.held_out, opening.scored(recipe, data.held_out), vocabulary=data.vocabulary)
    data.close()
    return float((held_out * nats).sum() / held_out.sum())


def _count(samples: Samples, number: int, *, vocabulary: int) -> NDArray[np.int64]:
    """[vocabulary]: how often each token is a target in the first samples."""
    counts = np.zeros(vocabulary, dtype=np.int64)
    for start in range(0, number, _ROWS):
        rows = list(range(start, min(number, start + _ROWS)))
        targets = samples.read(rows, size=len(rows))[1]
        counts += np.bincount(targets[targets != IGNORED], minlength=vocabulary)
    return counts
