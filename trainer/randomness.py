"""Seeds for what is drawn at random: each a function of named facts, and of nothing that was drawn before."""

import hashlib


def seed_for(*facts: object) -> int:
    """A seed below 2^56, for example from (the recipe's seed, "dropout", step, rank)."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, facts)).encode()).digest()[:7], "big")
