"""`python -m infra.receipt`: what the stack has cost so far. `make destroy` prints the same line at the end."""

from __future__ import annotations

import argparse
import os
import sys
from datetime import UTC, datetime

from infra import cost
from infra.cluster import Cluster
from infra.errors import InfraError
from infra.stack import current_stack, project_root, read_cluster


def text(cluster: Cluster) -> str:
    """The receipt of a cluster that ends now."""
    return cost.receipt(cluster, ended_at=datetime.now(UTC))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m infra.receipt",
        description="Print what the stack has cost so far: seconds, rate, total and the price's source.",
        epilog="example: python -m infra.receipt --stack local",
    )
    parser.add_argument("--stack", help="stack name (default: the selected one)")
    options = parser.parse_args()
    root = project_root()
    try:
        print(text(read_cluster(root, options.stack or current_stack(root))))
    except InfraError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main())
