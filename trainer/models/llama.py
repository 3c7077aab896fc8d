"""A Llama-style decoder: RMS norm, rotary positions, grouped-query attention, SwiGLU. Fits any strategy.

No dropout: models of this kind are trained for about one epoch. Arithmetic that needs digits runs in float32, or in
the weights' own type where that is wider (float64 in tests).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.models.sections import LlamaSection, RopeScaling
from trainer.randomness import seed_for


def wide(dtype: torch.dtype) -> torch.dtype:
    """float32, or `dtype` itself if that is wider."""
    return torch.promote_types(dtype, torch.float32)


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = x.to(wide(x.dtype))  # in bf16, the mean of squares would lose too many digits
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return y.to(x.dtype) * self.weight


class Rope:
    """Rotary positions. Not a module and without state: nothing to shard, to cast or to save."""

    def __init__(self, head_width: int, theta: float, scaling: RopeScaling | None) -> None:
        self.half, self.theta, self.scaling = head_width // 2, theta, scaling

    def frequencies(self, *, device: torch.device, dtype: torch.dtype) -> Tensor:
        """[half] radians per position, fastest first."""
        frequency = self.theta ** (-torch.arange(self.half, device=device, dtype=dtype) / self.half)
        scaling = self.scaling
        if scaling is None:
            return frequency
        # Llama 3.1: what turns at least `high` times within the original length stays, what turns at most `low`
        # times is slowed by the factor, and between them the two are blended.
        turns = scaling.original_length * frequency / (2 * math.pi)
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return kept * frequency + (1 - kept) * frequency / scaling.factor

    def tables(self, length: int, *, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(cos, sin), each [length, half]."""
        position = torch.arange(length, device=device, dtype=dtype)
        angle = torch.outer(position, self.frequencies(device=device, dtype=dtype))
        return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns the pairs (i, i + half) of each head. x: [batch, heads, time, head_width] → the same shape."""
    first, second = x.to(cos.dtype).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).to(x.dtype)


def within_documents(documents: Tensor) -> Tensor:
    """Which positions see which: [batch, time] document numbers → [batch, 1, time, time], true where one may attend.

    Positions needn't restart with a document: rotary attention depends on their differences alone.
    """
    causal = torch.ones(documents.shape[1], documents.shape[1], dtype=torch.bool, device=documents.device).tril()
    return (documents[:, None, :, None] == documents[:, None, None, :]) & causal


class Attention(nn.Module):
    def __init__(self, config: LlamaSection) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.kv_heads
        self.head_width = config.width // config.heads
        self.rope = Rope(self.head_width, config.rope_theta, config.rope_scaling)
        self.query = nn.Linear(config.width, config.heads * self.head_width, bias=False)
        self.key = nn.Linear(config.width, config.kv_heads * self.head_width, bias=False)
        self.value = nn.Linear(config.width, config.kv_heads * self.head_width, bias=False)
        self.output = nn.Linear(config.heads * self.head_width, config.width, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, time, _ = x.shape
        # [batch, time, heads × head_width] → [batch, heads, time, head_width]
        query = self.query(x).view(batch, time, self.heads, self.head_width).transpose(1, 2)
        key = self.key(x).view(batch, time, self.kv_heads, self.head_width).transpose(1, 2)
        value = self.value(x).view(batch, time, self.kv_heads, self.head_width).transpose(1, 2)
        cos, sin = self.rope.tables(time, device=x.device, dtype=wide(query.dtype))
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        # each key/value head serves heads / kv_heads query heads, without being copied
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=self.kv_heads != self.heads
        )
        # [batch, heads, time, head_width] → [batch, time, width]
        result: Tensor = self.output(mixed.transpose(1, 2).reshape(batch, time, -1))
        return result


class Block(nn.Module):
    def __init__(self, config: LlamaSection) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width, config.norm_eps)
        self.attention = Attention(config)
        self.feed_forward_norm = RMSNorm(config.width, config.norm_eps)
        self.gate = nn.Linear(config.width, config.feed_forward, bias=False)
        self.up = nn.Linear(config.width, config.feed_forward, bias=False)
        self.down = nn.Linear(config.feed_forward, config.width, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), mask)
        y = self.feed_forward_norm(x)
        result: Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return result


class Llama(nn.Module):
    """Made on the meta device it has shapes and no memory; `initialise` then fills what has got memory since."""

    def __init__(self, config: LlamaSection) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, config.norm_eps)
        # Tied weights are one parameter with one name, so that no strategy or checkpoint can take them for two.
        self.head = None if config.tie_embeddings else nn.Linear(config.width, config.vocabulary, bias=False)
        for name, weight in self.named_parameters():
            if not weight.is_meta:
                self.initialise(name, weight)

    @torch.no_grad()
    def initialise(self, name: str, weight: Tensor) -> None:
        """Fills the parameter `name`, whole and in place: a function of torch's seed and of the name alone.

        So it doesn't matter which parameters a rank fills, nor in which order.
        """
        if weight.dim() < 2:
            weight.fill_(1.0)
            return
        generator = torch.Generator(weight.device).manual_seed(seed_for(torch.initial_seed(), name))
        # The two projections that add to the residual stream start smaller, so that its variance stays bounded.
        residual = name.endswith(("output.weight", "down.weight"))
        std = 0.02 / (2 * self.config.layers) ** 0.5 if residual else 0.02
        # drawn in float32 whatever the weight's type: another precision starts from the same model
        weight.copy_(torch.empty(weight.shape, device=weight.device).normal_(std=std, generator=generator))

    def forward(self, tokens: Tensor, documents: Tensor | None = None) -> Tensor:
        """tokens: [batch, time] int64 → logits: [batch, time, vocabulary].

        documents: the number of each token's document in its row; attention then stays within documents.
        """
        x = self.embedding(tokens)
        mask = None if documents is None else within_documents(documents)
        for block in self.blocks:
            x = block(x, mask)
        head = self.embedding if self.head is None else self.head
        return functional.linear(self.norm(x), head.weight)
