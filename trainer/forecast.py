"""`python -m trainer forecast RECIPE --clusters JSON`: what a run needs on each of several clusters, for programs.

Which strategy fits and how much it sends is the footprint's answer; how much there is to compute is the recipe's. How
long that takes and what it costs depends on what is assumed of utilisation and network: the caller's matter.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt, TypeAdapter, ValidationError

from trainer import recipe_file, strict_json
from trainer.config import Recipe, accumulation_steps
from trainer.errors import ConfigError
from trainer.footprint import GIB, Measured, recommend


class Cluster(BaseModel):
    """One cluster to answer for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    nodes: PositiveInt
    gpus: PositiveInt
    """On each node."""
    gpu_memory_gib: PositiveFloat
    device: str
    """As CUDA names the GPU: "NVIDIA H100 80GB HBM3"."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """On one cluster. Bytes are of one rank: peak in its GPU, host in host memory, sent and moved (to it) in a step."""

    strategy: dict[str, Any] | None
    """The recipe's section; None: it can't be trained there."""
    reason: str
    peak: int | None = None
    host: int | None = None
    sent: int | None = None
    moved: int | None = None
    peak_flops: float | None = None
    """Of one GPU in the recipe's precision, FLOP/s; None: unknown."""


_CLUSTERS: TypeAdapter[list[Cluster]] = TypeAdapter(list[Cluster])


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    recipe = recipe_file.load(options.recipe, options.set)
    try:
        clusters = _CLUSTERS.validate_json(options.clusters)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise ConfigError(f"--clusters isn't a list of clusters ({where}: {first['msg']}).") from None
    print(strict_json.encode(forecast(recipe, clusters)))
    return 0


def forecast(recipe: Recipe, clusters: Sequence[Cluster]) -> dict[str, Any]:
    """Raises ConfigError for a precision without a formula."""
    from trainer.models.flops import flops_per_token

    measured = Measured(recipe)
    length = recipe.data.sequence_length
    needs = [_need(recipe, measured, cluster) for cluster in clusters]
    return {
        "experiment": recipe.experiment,
        "parameters": measured.parameters,
        "steps": recipe.training.steps,
        "tokens": recipe.training.steps * recipe.training.global_batch_size * length,
        "flops_per_token": flops_per_token(measured.model, length),
        "clusters": [need.__dict__ for need in needs],
    }


def _need(recipe: Recipe, measured: Measured, cluster: Cluster) -> Need:
    from trainer.metrics.hardware import peak_flops

    ranks = cluster.nodes * cluster.gpus
    try:
        accumulation_steps(recipe, ranks)
    except ConfigError as error:
        return Need(strategy=None, reason=str(error))
    footprints, notes = measured.footprints(ranks=ranks, per_node=cluster.gpus)
    choice, reason = recommend(footprints, memory=cluster.gpu_memory_gib * GIB)
    if choice is None:
        return Need(strategy=None, reason="; ".join([reason, *notes]))
    return Need(
        strategy=choice.settings,
        reason=reason,
        peak=choice.peak,
        host=choice.host,
        sent=choice.sent,
        moved=choice.moved,
        peak_flops=peak_flops(cluster.device, recipe.training.precision),
    )


def _parser() -> argparse.ArgumentParser:
    example = json.dumps([{"nodes": 2, "gpus": 8, "gpu_memory_gib": 80, "device": "NVIDIA H100 80GB HBM3"}])
    parser = argparse.ArgumentParser(
        prog="python -m trainer forecast",
        description="Says, for each of several clusters, which strategy fits a recipe and what it computes and sends.",
        epilog=f"example: python -m trainer forecast trainer/recipes/llama-1b.yaml --clusters '{example}'",
        allow_abbrev=False,
    )
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="recipe file (YAML)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one recipe key")
    parser.add_argument("--clusters", required=True, metavar="JSON", help="list of clusters, as in the example")
    return parser
