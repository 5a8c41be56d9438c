"""A Llama for training on a CPU: the weights of all layers stacked, so that growing is indexing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """The sizes of one model; head size is `width // heads`, all heads have their own keys."""

    layers: int
    width: int
    hidden: int
    heads: int
    vocab: int = 4096
    context: int = 2048

    def __post_init__(self) -> None:
        """Refuse widths that the heads do not divide into even parts (rotary pairs).

        Raises:
            ValueError: `width` is not a multiple of `2 * heads`.
        """
        if self.width % (2 * self.heads):
            raise ValueError(f"width {self.width} is no multiple of 2 x {self.heads} heads")

    @property
    def parameters(self) -> int:
        """Number of parameters, the tied embedding counted once."""
        block = 4 * self.width**2 + 3 * self.width * self.hidden + 2 * self.width
        return self.layers * block + self.vocab * self.width + self.width


THETA = 10_000.0
EPS = 1e-5
MATRICES = ("qkv", "out", "up", "down")
NORMS = ("norm1", "norm2")


class Llama(nn.Module):
    """The decoder of `LlamaForCausalLM` with tied embeddings; `export` writes it in that layout."""

    def __init__(self, shape: LlamaShape, generator: torch.Generator) -> None:
        """Draw the weights; the two matrices that write to the residual stream start smaller."""
        super().__init__()
        self.shape = shape
        n, d, f = shape.layers, shape.width, shape.hidden

        def normal(*size: int, std: float) -> nn.Parameter:
            return nn.Parameter(torch.randn(*size, generator=generator) * std)

        self.embed = normal(shape.vocab, d, std=0.02)  # [V, D]
        self.qkv = normal(n, 3, d, d, std=d**-0.5 * 0.6)  # [L, 3, D, D]
        self.out = normal(n, d, d, std=d**-0.5 * 0.3)  # [L, D, D]
        self.up = normal(n, 2, f, d, std=d**-0.5 * 0.6)  # [L, 2, F, D]: gate, then up
        self.down = normal(n, d, f, std=f**-0.5 * 0.3)  # [L, D, F]
        self.norm1 = nn.Parameter(torch.ones(n, d))  # [L, D]
        self.norm2 = nn.Parameter(torch.ones(n, d))  # [L, D]
        self.norm = nn.Parameter(torch.ones(d))  # [D]
        angle = rotary_angles(shape.context, d // shape.heads)  # [T, Dh]
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def hidden(self, ids: Tensor) -> Tensor:
        """Normalised last hidden states [B, T, D] of token ids [B, T]."""
        x = functional.embedding(ids, self.embed)
        cos = cast(Tensor, self.cos)[: ids.shape[1]]
        sin = cast(Tensor, self.sin)[: ids.shape[1]]
        layers = zip(*(getattr(self, name).unbind(0) for name in (*MATRICES, *NORMS)), strict=True)
        for qkv, out, up, down, norm1, norm2 in layers:
            x = block(x, qkv, out, up, down, norm1, norm2, cos, sin, self.shape.heads)
        return rms(x, self.norm)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits [B, T, V] of token ids [B, T]."""
        return functional.linear(self.hidden(ids), self.embed)

    def losses(self, ids: Tensor) -> Tensor:
        """Negative log-likelihood [B * T] in nats of each next token of ids [B, T + 1]."""
        return head_loss(self.hidden(ids[:, :-1]).flatten(0, 1), self.embed, ids[:, 1:].flatten())


def rotary_angles(length: int, size: int) -> Tensor:
    """Rotary angles [length, size] in the half-split layout that transformers uses."""
    rate = THETA ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)  # [Dh / 2]
    angle = torch.arange(length, dtype=torch.float32)[:, None] * rate
    return torch.cat([angle, angle], -1)


def rms(x: Tensor, weight: Tensor) -> Tensor:
    """Root-mean-square norm of x [..., D] with weight [D]."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position of x [B, H, T, Dh] with cos, sin [T, Dh]."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


def _block(
    x: Tensor,
    qkv: Tensor,
    out: Tensor,
    up: Tensor,
    down: Tensor,
    norm1: Tensor,
    norm2: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: int,
) -> Tensor:
    """One pre-norm layer on x [B, T, D]."""
    b, t, d = x.shape
    parts = functional.linear(rms(x, norm1), qkv.flatten(0, 1)).view(b, t, 3, heads, d // heads)
    query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)  # each [B, H, T, Dh]
    mixed = functional.scaled_dot_product_attention(
        rotate(query, cos, sin), rotate(key, cos, sin), value, is_causal=True
    )
    x = x + functional.linear(mixed.transpose(1, 2).reshape(b, t, d), out)
    gate, rise = functional.linear(rms(x, norm2), up.flatten(0, 1)).chunk(2, -1)  # each [B, T, F]
    return x + functional.linear(functional.silu(gate) * rise, down)


def _head_loss(hidden: Tensor, embed: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy [N] of hidden [N, D] against targets [N] under the tied head [V, D]."""
    return functional.cross_entropy(functional.linear(hidden, embed), targets, reduction="none")


block: Callable[..., Tensor] = _block
head_loss: Callable[..., Tensor] = _head_loss


def compile_layers() -> None:
    """Let torch.compile fuse a layer and the loss, for all models of this process."""
    global block, head_loss
    block = torch.compile(_block, dynamic=False)
    head_loss = torch.compile(_head_loss, dynamic=False)
