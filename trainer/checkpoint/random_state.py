"""The random number generators' states as plain tensors, so that a run that uses randomness goes on with the same."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor


def capture() -> dict[str, Tensor]:
    """This process's states: torch (CPU and, if used, the current GPU), Python and numpy."""
    version, words, gauss = random.getstate()
    del version  # 3 since Python 2.6
    numpy: dict[str, Any] = dict(np.random.get_state(legacy=False))
    states = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor(words, dtype=torch.int64),
        "python_gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        "numpy": torch.tensor([*numpy["state"]["key"].tolist(), numpy["state"]["pos"]], dtype=torch.int64),
        "numpy_gauss": torch.tensor([numpy["gauss"]] if numpy["has_gauss"] else [], dtype=torch.float64),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore(states: dict[str, Tensor]) -> None:
    """Takes over what `capture` gave, as far as this process has such a generator."""
    gauss = states["python_gauss"].tolist()
    random.setstate((3, tuple(states["python"].tolist()), gauss[0] if gauss else None))
    *keys, position = states["numpy"].tolist()
    cached = states["numpy_gauss"].tolist()
    np.random.set_state(
        ("MT19937", np.array(keys, dtype=np.uint32), position, int(bool(cached)), cached[0] if cached else 0.0)
    )
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
