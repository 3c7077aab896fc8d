"""`python -m bench [name …]`: run measurements and print their figures. `make bench` runs all (about ten minutes)."""

from __future__ import annotations

import argparse
import importlib
import json

NAMES = ("launch", "bootstrap", "up", "preview", "trainer", "checkpoint")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure ratios against peers.", epilog="example: python -m bench launch up"
    )
    parser.add_argument("names", nargs="*", metavar="name", choices=[*NAMES, []], help=f"of {', '.join(NAMES)}")
    for name in parser.parse_args().names or NAMES:
        module = importlib.import_module(f"bench.{name}_bench")
        print(f"{name}: {(module.__doc__ or '').splitlines()[0]}", flush=True)
        print(json.dumps(module.measure(), indent=1), flush=True)


if __name__ == "__main__":
    main()
