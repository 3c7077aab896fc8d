"""A small convolutional network that tells shapes apart: a recipe with its own model, data and loss.

Run: python -m trainer examples/vision/recipe.yaml --set strategy=single
 or: torchrun --nproc-per-node 2 -m trainer examples/vision/recipe.yaml

The images are drawn here, from the sample's number: a disc, a square, a cross or a ring, anywhere, in noise. So there
is nothing to download, no two samples are alike, and any rank can draw any sample.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = ("disc", "square", "cross", "ring")
EVALUATION = 10**9  # samples from here on are never trained on


class Block(nn.Module):
    """[batch, width, height, width] → the same shape."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, width)
        self.spread = nn.Conv2d(width, width, kernel_size=5, padding=2, groups=width)
        self.mix = nn.Sequential(nn.Conv2d(width, 2 * width, 1), nn.GELU(), nn.Conv2d(2 * width, width, 1))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.mix(self.spread(self.norm(x)))
        return result


class ConvNet(nn.Module):
    def __init__(self, *, width: int, blocks: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, kernel_size=4, stride=4)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, len(CLASSES))

    def forward(self, images: Tensor) -> Tensor:
        """images: [batch, 1, size, size] → logits: [batch, classes]."""
        x = self.patches(images)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x.mean(dim=(2, 3)))
        return logits


def build_model(config: Any) -> nn.Module:
    return ConvNet(**{key: config.model.options[key] for key in ("width", "blocks")})


def build_data(config: Any, rank: int, world: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless; the samples of a step are the same whatever the number of ranks."""
    rows, first = config.training.micro_batch_size, start + rank * config.training.micro_batch_size
    while True:
        yield draw(range(first, first + rows), size=config.model.options["size"], seed=config.seed)
        first += rows * world


def build_evaluation_data(config: Any, rank: int, world: int) -> list[tuple[Tensor, Tensor]]:
    rows, size = config.training.micro_batch_size, config.model.options["size"]
    count = config.training.evaluation_batches * config.training.global_batch_size
    starts = range(EVALUATION + rank * rows, EVALUATION + count, rows * world)
    return [draw(range(start, start + rows), size=size, seed=config.seed) for start in starts]


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The mean over the batch; the trainer turns it into a mean over all images of the step."""
    images, labels = batch
    return functional.cross_entropy(model(images), labels)


def draw(samples: range, *, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """(images [samples, 1, size, size] float32, labels [samples] int64)."""
    images = np.empty((len(samples), 1, size, size), dtype=np.float32)
    labels = np.empty(len(samples), dtype=np.int64)
    y, x = np.mgrid[:size, :size]
    for row, sample in enumerate(samples):
        random = np.random.default_rng([seed, sample])
        labels[row] = random.integers(len(CLASSES))
        radius = random.uniform(size / 8, size / 4)
        top, left = random.uniform(radius, size - radius, 2)
        down, across = np.abs(y - top), np.abs(x - left)
        distance = np.hypot(down, across)
        shape = {
            "disc": distance < radius,
            "square": np.maximum(down, across) < radius,
            "cross": (np.maximum(down, across) < radius) & (np.minimum(down, across) < radius / 3),
            "ring": (distance < radius) & (distance > radius / 2),
        }[CLASSES[labels[row]]]
        images[row, 0] = shape + random.normal(0, 0.2, (size, size))
    return torch.from_numpy(images), torch.from_numpy(labels)
