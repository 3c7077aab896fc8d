"""`python -m infra.pulumi_engine`: install the Pulumi engine for this checkout and prepare its backend."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from infra.errors import EngineError
from infra.pulumi_engine import find_pulumi, initialise, install

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0, or that of EngineError with one sentence on standard error."""
    parser = argparse.ArgumentParser(
        prog="python -m infra.pulumi_engine",
        description="Install the Pulumi engine for a checkout (from PATH, the official installer or Go modules) "
        "and make its passphrase, backend and stack `local`. What is there already is kept.",
        epilog="example: python -m infra.pulumi_engine --force",
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout (default: the one this file is in)")
    parser.add_argument("--force", action="store_true", help="look for the engine again even if it is there")
    options = parser.parse_args(arguments)
    try:
        if options.force or not _is_installed(options.root):
            install(options.root, report=_report)
        initialise(options.root)
    except EngineError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    _report(f"ready: {find_pulumi(options.root)}")
    return 0


def _is_installed(root: Path) -> bool:
    try:
        find_pulumi(root)
    except EngineError:
        return False
    return True


def _report(line: str) -> None:
    print(f"engine: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
