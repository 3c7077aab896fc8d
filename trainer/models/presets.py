"""Ready shapes for the built-in model, `model: {preset: NAME}`; the recipe's own keys override them. Imports no torch.

Each shape is the published one, from the named model's config.json (config.py for the first stories models), except
`llama-1m`, which is ours: a model for bytes that trains in minutes on a laptop. A test compares the number of
parameters of each with the published number.
"""

from typing import Any

_LLAMA_3 = {"vocabulary": 128256, "rope_theta": 500000.0, "norm_eps": 1e-5}
_LLAMA_2 = {"vocabulary": 32000, "rope_theta": 10000.0, "norm_eps": 1e-5}
_SMOL_2 = {"vocabulary": 49152, "rope_theta": 100000.0, "norm_eps": 1e-5, "tie_embeddings": True}
_STORIES = {"vocabulary": 32000, "rope_theta": 10000.0, "norm_eps": 1e-5, "tie_embeddings": True}


def _shape(layers: int, width: int, heads: int, kv_heads: int, hidden: int, **others: Any) -> dict[str, Any]:
    return {"layers": layers, "width": width, "heads": heads, "kv_heads": kv_heads, "hidden": hidden, **others}


def _scaling(factor: float) -> dict[str, float]:
    return {"factor": factor, "low_frequency_factor": 1.0, "high_frequency_factor": 4.0, "original_length": 8192}


PRESETS: dict[str, dict[str, Any]] = {
    # ours
    "llama-1m": _shape(4, 128, 4, 2, 512, vocabulary=257),
    # github.com/karpathy/llama2.c, README, "models"
    "stories-15m": _shape(6, 288, 6, 6, 768, **_STORIES),
    "stories-42m": _shape(8, 512, 8, 8, 1376, **_STORIES),
    "stories-110m": _shape(12, 768, 12, 12, 2048, **_STORIES),
    # huggingface.co/HuggingFaceTB/SmolLM2-135M, -360M
    "smollm2-135m": _shape(30, 576, 9, 3, 1536, **_SMOL_2),
    "smollm2-360m": _shape(32, 960, 15, 5, 2560, **_SMOL_2),
    # huggingface.co/TinyLlama/TinyLlama_v1.1
    "tinyllama-1.1b": _shape(22, 2048, 32, 4, 5632, **_LLAMA_2),
    # huggingface.co/meta-llama/Llama-3.2-1B, -3B
    "llama-3.2-1b": _shape(16, 2048, 32, 8, 8192, tie_embeddings=True, rope_scaling=_scaling(32.0), **_LLAMA_3),
    "llama-3.2-3b": _shape(28, 3072, 24, 8, 8192, tie_embeddings=True, rope_scaling=_scaling(32.0), **_LLAMA_3),
    # huggingface.co/meta-llama/Llama-2-7b-hf, -13b-hf, -70b-hf
    "llama-2-7b": _shape(32, 4096, 32, 32, 11008, **_LLAMA_2),
    "llama-2-13b": _shape(40, 5120, 40, 40, 13824, **_LLAMA_2),
    "llama-2-70b": _shape(80, 8192, 64, 8, 28672, **_LLAMA_2),
    # huggingface.co/meta-llama/Llama-3.1-8B, -70B
    "llama-3.1-8b": _shape(32, 4096, 32, 8, 14336, rope_scaling=_scaling(8.0), **_LLAMA_3),
    "llama-3.1-70b": _shape(80, 8192, 64, 8, 28672, rope_scaling=_scaling(8.0), **_LLAMA_3),
}
