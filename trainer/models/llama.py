"""A Llama-style decoder: RMS norm, rotary positions, grouped-query attention, SwiGLU. Fits any strategy."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.config import ModelSection


def wide(x: Tensor) -> Tensor:
    """x in float32, or in its own dtype when that is wider: for sums that lose too many digits in bf16."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        # In float32 also under bf16: the mean of squares loses too many digits otherwise.
        y = wide(x)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return y.to(x.dtype) * self.weight


def rotate(x: Tensor, theta: float) -> Tensor:
    """Rotary position embedding. x: [batch, heads, time, head_width] → the same shape."""
    half = x.shape[-1] // 2
    dtype = torch.promote_types(x.dtype, torch.float32)
    frequency = theta ** (-torch.arange(half, device=x.device, dtype=dtype) / half)
    angle = torch.outer(torch.arange(x.shape[-2], device=x.device, dtype=dtype), frequency)  # [time, half]
    cos, sin = angle.cos(), angle.sin()
    first, second = x.to(dtype).split(half, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, config: ModelSection) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.theta = config.heads, config.kv_heads, config.rope_theta
        self.head_width = config.width // config.heads
        self.query = nn.Linear(config.width, config.heads * self.head_width, bias=False)
        self.key = nn.Linear(config.width, config.kv_heads * self.head_width, bias=False)
        self.value = nn.Linear(config.width, config.kv_heads * self.head_width, bias=False)
        self.output = nn.Linear(config.heads * self.head_width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, _ = x.shape
        # [batch, time, heads × head_width] → [batch, heads, time, head_width]
        query = self.query(x).view(batch, time, self.heads, self.head_width).transpose(1, 2)
        key = self.key(x).view(batch, time, self.kv_heads, self.head_width).transpose(1, 2)
        value = self.value(x).view(batch, time, self.kv_heads, self.head_width).transpose(1, 2)
        query, key = rotate(query, self.theta), rotate(key, self.theta)
        # each key/value head serves heads / kv_heads query heads → [batch, heads, time, head_width]
        groups = self.heads // self.kv_heads
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        # [batch, heads, time, head_width] → [batch, time, width]
        result: Tensor = self.output(mixed.transpose(1, 2).reshape(batch, time, -1))
        return result


class Block(nn.Module):
    def __init__(self, config: ModelSection) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width, config.norm_eps)
        self.attention = Attention(config)
        self.feed_forward_norm = RMSNorm(config.width, config.norm_eps)
        self.gate = nn.Linear(config.width, config.feed_forward, bias=False)
        self.up = nn.Linear(config.width, config.feed_forward, bias=False)
        self.down = nn.Linear(config.feed_forward, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        y = self.feed_forward_norm(x)
        result: Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return result


class Llama(nn.Module):
    def __init__(self, config: ModelSection) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() < 2:
                continue
            # The two projections that add to the residual stream start smaller, so that its variance stays bounded.
            residual = name.endswith(("output.weight", "down.weight"))
            nn.init.normal_(weight, std=0.02 / (2 * config.layers) ** 0.5 if residual else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: [batch, time] int64 → logits: [batch, time, vocabulary]."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits
