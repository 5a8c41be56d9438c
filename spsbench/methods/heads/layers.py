"""Layers of heads: Llama's, with Qwen's norms and biases where a head has them.

Shapes: m rows of a pass, n visible rows, H the head's width, A = heads * head_dim.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from spsbench.loop.drafter_context import Cache
from spsbench.models.heads.description import LayerShape


class Rotary(nn.Module):
    """Rotary angles of positions; scaled kinds as transformers computes their frequencies."""

    frequencies: Tensor  # [head_dim / 2] float64

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        scaling = dict(shape.rope_scaling)
        kind = scaling.get("rope_type", "default")
        self.scale = 1.0
        if kind == "default":
            steps = torch.arange(0, shape.head_dim, 2, dtype=torch.float64, device="cpu")
            found = 1.0 / shape.rope_theta ** (steps / shape.head_dim)
        else:
            config = LlamaConfig(
                hidden_size=shape.heads * shape.head_dim,
                num_attention_heads=shape.heads,
                head_dim=shape.head_dim,
                max_position_embeddings=shape.positions,
                rope_parameters={**scaling, "rope_theta": shape.rope_theta},
            )
            with torch.device("cpu"):
                found, self.scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        self.register_buffer("frequencies", found.double(), persistent=False)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Map [m] positions to cos and sin, each [m, head_dim]."""
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        angles = positions[:, None].to(wide) * self.frequencies.to(wide)
        angles = torch.cat([angles, angles], -1)
        return (angles.cos() * self.scale).to(dtype), (angles.sin() * self.scale).to(dtype)


class Attention(nn.Module):
    """Grouped-query attention over a cache; its input may be wider than the head."""

    def __init__(self, shape: LayerShape, fed: int, number: int) -> None:
        super().__init__()
        self.shape, self.number = shape, number
        rows, shared = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(fed, rows, bias=shape.qkv_bias)
        self.k_proj = nn.Linear(fed, shared, bias=shape.qkv_bias)
        self.v_proj = nn.Linear(fed, shared, bias=shape.qkv_bias)
        self.o_proj = nn.Linear(rows, shape.width, bias=shape.out_bias)
        if shape.qk_norm:
            self.q_norm = nn.RMSNorm(shape.head_dim, eps=shape.eps)
            self.k_norm = nn.RMSNorm(shape.head_dim, eps=shape.eps)

    def forward(self, x: Tensor, places: tuple[Tensor, Tensor], cache: Cache, sees: Any) -> Tensor:
        """Attend from [m, fed] rows under the mask `sees` ([m, n] bool; None: all): [m, H]."""
        return self.look(x, places, self.note(x, places, cache), sees)

    def look(
        self, x: Tensor, places: tuple[Tensor, Tensor], held: tuple[Tensor, Tensor], sees: Any
    ) -> Tensor:
        """Attend over keys and values that exist already: `held`, as `note` returns them."""
        m, width = len(x), self.shape.head_dim
        q = self.q_proj(x).view(m, -1, width)
        q = turned(self.q_norm(q) if self.shape.qk_norm else q, places)
        out = scaled_dot_product_attention(
            q.transpose(0, 1)[None], *held, attn_mask=sees, enable_gqa=True
        )
        kept: Tensor = self.o_proj(out[0].transpose(0, 1).reshape(m, -1))
        return kept

    def note(self, x: Tensor, places: tuple[Tensor, Tensor], cache: Cache) -> tuple[Tensor, Tensor]:
        """Append keys and values of [m, fed] rows to the cache, and return all of them."""
        m, width = len(x), self.shape.head_dim
        k, v = (part(x).view(m, -1, width) for part in (self.k_proj, self.v_proj))
        k = turned(self.k_norm(k) if self.shape.qk_norm else k, places)
        return cache.update(k.transpose(0, 1)[None], v.transpose(0, 1)[None], self.number)


def turned(x: Tensor, places: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate [m, heads, head_dim] by the angles of its rows, half against half."""
    cos, sin = (part[:, None] for part in places)
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin


class Mlp(nn.Module):
    """A gated feed-forward block."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.inner, bias=shape.mlp_bias)
        self.up_proj = nn.Linear(shape.width, shape.inner, bias=shape.mlp_bias)
        self.down_proj = nn.Linear(shape.inner, shape.width, bias=shape.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map [m, H] to [m, H]."""
        made: Tensor = self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        return made


class Layer(nn.Module):
    """A decoder layer; `normed` = whether it has a norm before its attention."""

    def __init__(self, shape: LayerShape, number: int, normed: bool = True) -> None:
        super().__init__()
        self.self_attn = Attention(shape, shape.width, number)
        self.mlp = Mlp(shape)
        self.input_layernorm = nn.RMSNorm(shape.width, eps=shape.eps) if normed else nn.Identity()
        self.post_attention_layernorm = nn.RMSNorm(shape.width, eps=shape.eps)

    def forward(self, x: Tensor, places: tuple[Tensor, Tensor], cache: Cache, sees: Any) -> Tensor:
        """Map [m, H] to [m, H]."""
        x = x + self.self_attn(self.input_layernorm(x), places, cache, sees)
        made: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return made
