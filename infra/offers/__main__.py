"""`python -m infra.offers SOURCE WISH`: asks one source, and says its Answer as JSON. asking.py starts it."""

from __future__ import annotations

import sys

from infra.errors import InfraError
from infra.offers.asking import ANSWER, WISH, failed
from infra.offers.sources import SOURCES


def main(key: str, wish: str) -> None:
    source = SOURCES[key]
    try:
        answer = source.ask(WISH.validate_json(wish))
    except InfraError as error:
        answer = failed(source, str(error))
    sys.stdout.write(ANSWER.dump_json(answer).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
