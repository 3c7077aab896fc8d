"""Arithmetic of training per token, for model FLOPs utilisation (MFU)."""

from __future__ import annotations

from typing import Any

from torch import nn

from trainer.models.sections import LlamaSection

# Experts and recurrent layers do other work than the formula counts: better no number than a wrong one.
_OTHER_WORK = (
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "state_size",
    "ssm_cfg",
    "mamba_d_state",
    "linear_num_value_heads",
)


def flops_per_token(model: nn.Module, sequence_length: int) -> float | None:
    """Floating point operations for one token's forward and backward pass: 6 N + 12 L H Q T.

    N: weights that multiply activations (a table that is only looked up multiplies nothing); L layers, H heads of
    width Q, sequences of T. Source: Chowdhery et al. 2022, "PaLM" (arXiv:2204.02311), appendix B. As there, attention
    counts in full although a causal one needs half, and recomputed activations don't count. A frozen weight needs no
    gradient of its own: 4 instead of 6. Takes the plain model, before a strategy wraps it. None where the formula
    doesn't hold: a model that isn't a decoder known by its `config`, or one with experts or recurrent layers.
    """
    attention = _attention(model, sequence_length)
    if attention is None:
        return None
    lookups = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    lookups -= {id(weight) for weight in _head(model)}  # tied: looked up, and multiplied at the end
    weights = [weight for weight in model.parameters() if weight.dim() >= 2 and id(weight) not in lookups]
    return sum((6.0 if weight.requires_grad else 4.0) * weight.numel() for weight in weights) + attention


def _head(model: nn.Module) -> list[nn.Parameter]:
    if isinstance(getattr(model, "config", None), LlamaSection):
        embedding: Any = model.embedding
        return [embedding.weight] if getattr(model, "head", None) is None else []
    outputs: Any = getattr(model, "get_output_embeddings", lambda: None)
    head = outputs()
    return [head.weight] if head is not None else []


def _attention(model: nn.Module, length: int) -> float | None:
    """12 L H Q T, or None when the model doesn't tell L, H and Q."""
    config: Any = getattr(model, "config", None)
    if isinstance(config, LlamaSection):
        return 12.0 * config.layers * config.width * length
    if not hasattr(config, "get_text_config"):
        return None
    text = config.get_text_config()
    window = getattr(text, "sliding_window", None)
    if any(getattr(text, name, None) for name in _OTHER_WORK) or (window is not None and window < length):
        return None
    layers, heads = getattr(text, "num_hidden_layers", None), getattr(text, "num_attention_heads", None)
    width = getattr(text, "head_dim", None) or (getattr(text, "hidden_size", 0) // heads if heads else None)
    return 12.0 * layers * heads * width * length if layers and heads and width else None
