"""Layers of heads: Llama's, with Qwen's norms and biases where a head has them.

Shapes: m rows of a pass, n visible rows, H the head's width, A = heads * head_dim.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from spsbench.engines.session.cache import doubled
from spsbench.loop.drafter_context import Cache
from spsbench.models.heads.description import LayerShape

Held = tuple[Tensor, Tensor]
"""Keys and values of all rows so far, each [1, kv_heads, n, head_dim]."""


class Places(NamedTuple):
    """The places of m rows in a text."""

    positions: Tensor  # [m] int64
    cos: Tensor  # [m, head_dim] of the rotary angles
    sin: Tensor


class Rotary(nn.Module):
    """Rotary angles of positions; scaled kinds as transformers computes their frequencies."""

    frequencies: Tensor  # [head_dim / 2] float64
    _table: Places | None = None  # of all positions up to some

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        scaling = dict(shape.rope_scaling)
        kind = scaling.get("rope_type", "default")
        self.scale = 1.0
        if kind == "default":
            steps = torch.arange(0, shape.head_dim, 2, dtype=torch.float64, device="cpu")
            frequencies = 1.0 / shape.rope_theta ** (steps / shape.head_dim)
        else:
            config = LlamaConfig(
                hidden_size=shape.heads * shape.head_dim,
                num_attention_heads=shape.heads,
                head_dim=shape.head_dim,
                max_position_embeddings=shape.positions,
                rope_parameters={**scaling, "rope_theta": shape.rope_theta},
            )
            with torch.device("cpu"):
                frequencies, self.scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        self.register_buffer("frequencies", frequencies.double(), persistent=False)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Places:
        """Return the places at [m] positions."""
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        angles = positions[:, None].to(wide) * self.frequencies.to(wide)
        angles = torch.cat([angles, angles], -1)
        cos, sin = ((part * self.scale).to(dtype) for part in (angles.cos(), angles.sin()))
        return Places(positions, cos, sin)

    def rows(self, start: int, m: int, dtype: torch.dtype) -> Places:
        """Return m places from position `start` on, out of a table that grows."""
        table, end = self._table, start + m
        if table is None or len(table.cos) < end or table.cos.dtype != dtype:
            every = torch.arange(doubled(end), device=self.frequencies.device)
            table = self._table = self(every, dtype)
        return Places(*(part[start:end] for part in table))


class Attention(nn.Module):
    """Grouped-query attention over a cache; its input may be wider than the head.

    Attributes:
        attend: as a function of transformers' `AttentionInterface`; an engine may exchange it.
    """

    is_causal = False  # but for its mask; transformers' name

    def __init__(self, shape: LayerShape, fed: int, number: int) -> None:
        super().__init__()
        self.shape, self.number = shape, number
        self.num_key_value_groups = shape.heads // shape.kv_heads  # transformers' name
        self.attend: Any = attend
        rows, shared = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(fed, rows, bias=shape.qkv_bias)
        self.k_proj = nn.Linear(fed, shared, bias=shape.qkv_bias)
        self.v_proj = nn.Linear(fed, shared, bias=shape.qkv_bias)
        self.o_proj = nn.Linear(rows, shape.width, bias=shape.out_bias)
        if shape.qk_norm:
            self.q_norm = nn.RMSNorm(shape.head_dim, eps=shape.eps)
            self.k_norm = nn.RMSNorm(shape.head_dim, eps=shape.eps)

    def forward(self, x: Tensor, places: Places, cache: Cache, sees: Any) -> Tensor:
        """Attend from [m, fed] rows under the mask `sees`: [m, H].

        `sees` is [m, n] bool, or [1, 1, m, n] additive; None: everything is seen.
        """
        return self.look(x, places, self.append_kv(x, places, cache), sees)

    def look(self, x: Tensor, places: Places, held: "Held | list[TextHeld]", sees: Any) -> Tensor:
        """Attend over keys and values that exist already: `held`, as `append_kv` returns them."""
        m, width = len(x), self.shape.head_dim
        q = self.q_proj(x).view(m, -1, width)
        q = turned(self.q_norm(q) if self.shape.qk_norm else q, places)
        q = q.transpose(0, 1)[None]
        if isinstance(held, list):
            parts = [(q[:, :, text.rows], *text.held, text.sees) for text in held]
            out = torch.cat([self.attend(self, *part)[0] for part in parts], 1)
        else:
            whole = sees if sees is None or sees.ndim > 2 else sees[None, None]
            out = self.attend(self, q, *held, whole)[0]
        kept: Tensor = self.o_proj(out.reshape(m, -1))
        return kept

    def append_kv(self, x: Tensor, places: Places, cache: Cache) -> Held:
        """Append keys and values of [m, fed] rows to the cache, and return all of them."""
        m, width = len(x), self.shape.head_dim
        k, v = (part(x).view(m, -1, width) for part in (self.k_proj, self.v_proj))
        k = turned(self.k_norm(k) if self.shape.qk_norm else k, places)
        return cache.update(k.transpose(0, 1)[None], v.transpose(0, 1)[None], self.number)


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **more: Any
) -> tuple[Tensor, None]:
    """Return attention [1, m, heads, head_dim] of `query` [1, heads, m, head_dim], by torch."""
    out = scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, enable_gqa=True)
    return out.transpose(1, 2), None


class TextHeld(NamedTuple):
    """The keys and values that one text of a common pass attends to."""

    rows: slice  # of the pass
    held: Held
    sees: Any  # as of `Attention.forward`


class TextCaches:
    """The caches of several texts for a common pass: each text's rows see its own keys alone.

    Args:
        sizes: rows of each text.
        caches: of each text.
        sees: the mask of each text.
    """

    def __init__(self, sizes: Sequence[int], caches: Sequence[Cache], sees: Sequence[Any]) -> None:
        ends = list(accumulate(sizes))
        parts = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        self._texts = list(zip(parts, caches, sees, strict=True))

    def update(self, keys: Tensor, values: Tensor, layer: int) -> list[TextHeld]:
        """Append the rows [1, heads, M, width] of a layer, each to the cache of its text."""
        return [
            TextHeld(rows, cache.update(keys[:, :, rows], values[:, :, rows], layer), sees)
            for rows, cache, sees in self._texts
        ]


def turned(x: Tensor, places: Places) -> Tensor:
    """Rotate [m, heads, head_dim] by the angles of its rows, half against half."""
    cos, sin = places.cos[:, None], places.sin[:, None]
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin


class Mlp(nn.Module):
    """A gated feed-forward block."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.inner, bias=shape.mlp_bias)
        self.up_proj = nn.Linear(shape.width, shape.inner, bias=shape.mlp_bias)
        self.down_proj = nn.Linear(shape.inner, shape.width, bias=shape.mlp_bias)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        """Map [m, H] to [m, H]."""
        output: Tensor = self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))
        return output


class Layer(nn.Module):
    """A decoder layer; `normed` = whether it has a norm before its attention."""

    def __init__(self, shape: LayerShape, number: int, normed: bool = True) -> None:
        super().__init__()
        self.self_attn = Attention(shape, shape.width, number)
        self.mlp = Mlp(shape)
        self.input_layernorm = nn.RMSNorm(shape.width, eps=shape.eps) if normed else nn.Identity()
        self.post_attention_layernorm = nn.RMSNorm(shape.width, eps=shape.eps)

    def forward(self, x: Tensor, places: Places, cache: Cache, sees: Any) -> Tensor:
        """Map [m, H] to [m, H]."""
        x = x + self.self_attn(self.input_layernorm(x), places, cache, sees)
        output: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return output
