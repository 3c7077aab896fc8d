"""Who can be asked for offers, the best first: for each provider the first source that answers counts, and alone.

Adding one is one function and one line here. A source is asked in a process of its own (asking.py), so what it imports
costs nothing where it isn't asked.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field

from infra.offers.offer import Offer
from infra.offers.wish import Wish


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a source told. A provider of it with neither offers nor a problem has nothing that was asked for."""

    offers: tuple[Offer, ...] = ()
    problems: dict[str, str] = field(default_factory=dict)
    """Provider to one sentence: why this source tells nothing of it."""


@dataclass(frozen=True, kw_only=True)
class Source:
    name: str
    """For messages: "Lambda's API"."""
    providers: tuple[str, ...]
    function: str
    """"module:function" of what takes the wish and returns an Answer, or raises InfraError for all of its providers."""

    def ask(self, wish: Wish) -> Answer:
        module, _, name = self.function.partition(":")
        function: Callable[[Wish], Answer] = getattr(importlib.import_module(module), name)
        return function(wish)


SNAPSHOT = "the snapshot of this checkout"
SOURCES: dict[str, Source] = {
    "lambda": Source(name="Lambda's API", providers=("lambda",), function="infra.offers.live:lambda_cloud"),
    "catalogue": Source(
        name="gpuhunt's catalogue",
        providers=("aws", "gcp", "lambda", "runpod"),
        function="infra.offers.hunted:catalogue",
    ),
    "vast": Source(name="Vast.ai through gpuhunt", providers=("vast",), function="infra.offers.hunted:vast"),
}
