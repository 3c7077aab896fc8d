"""The loss that needs no neural network: byte frequencies of the training part, scored on the held-out windows."""

import numpy as np

from trainer.config import Recipe
from trainer.data import sources
from trainer.data.batches import IGNORED, Windows


def held_out_windows(recipe: Recipe, corpus: sources.Corpus) -> tuple[Windows, int]:
    """(windows, how many are scored): the same for the model's evaluations and for the baseline."""
    windows = Windows(corpus.held_out, length=recipe.data.sequence_length, seed=0)
    return windows, min(windows.count, recipe.training.evaluation_batches * recipe.training.global_batch_size)


def held_out_loss(recipe: Recipe) -> float:
    """Nats per token of a unigram model with add-one smoothing."""
    corpus = sources.load(recipe.data)
    counts = np.bincount(corpus.training, minlength=recipe.model.vocabulary) + 1.0
    nats = -np.log(counts / counts.sum())  # [vocabulary]
    windows, scored = held_out_windows(recipe, corpus)
    _, targets = windows.read(list(range(scored)), size=scored)
    return float(nats[targets[targets != IGNORED]].mean())
