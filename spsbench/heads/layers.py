"""Layers of heads: Llama's, with Qwen's norms and biases where a head has them.

Shapes: m rows of a pass, n visible rows, H the head's width, A = heads * head_dim.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from spsbench.checkpoints.weights import TensorHeader
from spsbench.engines.session.cache import grow_capacity
from spsbench.errors import DataError
from spsbench.heads.files import MANY, check_kind, positive, read_size
from spsbench.loop.drafter_context import Cache

ROPES = ("default", "linear", "dynamic", "llama3", "yarn")
GATED = ("silu", "swish")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """The shape of a head's layers, which are all alike."""

    width: int  # H
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: tuple[tuple[str, Any], ...] = ()
    positions: int = 2048  # that it was trained for; scaled angles depend on it
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False


def layer_shape(config: Mapping[str, Any], where: str) -> LayerShape:
    """Return the shape of the layers that `config` describes; DataError: none that is known.

    `config` is that of a Llama, Qwen2, Qwen3 or Mistral model, or of a head of such layers; `where`
    names its file. Each size is checked alone, and activation and rotary angles; other models pass
    as Llamas, but not a `model_type` that neither heads nor transformers have.
    """
    width = read_size(config, "hidden_size", where)
    heads = read_size(config, "num_attention_heads", where)
    check_kind(config, where)
    kind = str(config.get("model_type") or "llama")
    act = str(config.get("hidden_act", "silu"))
    if act not in GATED:
        raise DataError(f"hidden_act {act!r} ({where}): expected silu. Such heads are not known")
    nested = config.get("rope_parameters") or config.get("rope_scaling")  # newer configs nest all
    rope = dict(nested) if isinstance(nested, Mapping) else {}
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    named = scaling.get("rope_type", scaling.pop("type", "default"))
    if named not in ROPES:
        raise DataError(
            f"rope_type {named!r} ({where}): expected one of {', '.join(ROPES)}. Such heads are "
            "not known"
        )
    attention_bias = bool(config.get("attention_bias", False))
    theta = rope.get("rope_theta", config.get("rope_theta"))
    return LayerShape(
        width=width,
        inner=read_size(config, "intermediate_size", where),
        heads=heads,
        kv_heads=read_size(config, "num_key_value_heads", where, heads),
        head_dim=read_size(config, "head_dim", where, width // heads),
        eps=positive(config.get("rms_norm_eps", 1e-6), "rms_norm_eps", where),
        rope_theta=positive(10000.0 if theta is None else theta, "rope_theta", where),
        rope_scaling=() if named == "default" else tuple({**scaling, "rope_type": named}.items()),
        positions=read_size(config, "max_position_embeddings", where, 2048),
        qkv_bias=bool(config.get("qkv_bias", attention_bias or kind == "qwen2")),
        out_bias=attention_bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=kind.startswith("qwen3"),
    )


def layers_in(headers: Mapping[str, TensorHeader], config: Mapping[str, Any], where: str) -> int:
    """Return the number of layers by the file's highest; without any the config's, or else 1."""
    stated = read_size(config, "num_hidden_layers", where, 1, most=MANY)
    numbers = [int(m[1]) for name in headers if (m := re.match(r"stack\.(\d{1,4})\.", name))]
    return max(numbers, default=stated - 1) + 1


def as_filed(headers: Mapping[str, TensorHeader], layer: LayerShape) -> LayerShape:
    """Return `layer` with the biases, norms, heads and inner width of the first layer's tensors.

    Configs often copy these from the target. The config's heads stay if those of the tensors do not
    divide, and all stays without such a layer in the file.
    """
    at = "stack.0."
    if f"{at}self_attn.q_proj.weight" not in headers:
        return layer

    def rows(name: str, otherwise: int) -> int:
        return headers[at + name].shape[0] if at + name in headers else otherwise

    heads, left = divmod(rows("self_attn.q_proj.weight", 0), layer.head_dim)
    kv_heads, kv_left = divmod(rows("self_attn.k_proj.weight", 0), layer.head_dim)
    fits = heads and kv_heads and not left and not kv_left and heads % kv_heads == 0
    return replace(
        layer,
        inner=rows("mlp.gate_proj.weight", layer.inner),
        heads=heads if fits else layer.heads,
        kv_heads=kv_heads if fits else layer.kv_heads,
        qkv_bias=f"{at}self_attn.q_proj.bias" in headers,
        out_bias=f"{at}self_attn.o_proj.bias" in headers,
        mlp_bias=f"{at}mlp.gate_proj.bias" in headers,
        qk_norm=f"{at}self_attn.q_norm.weight" in headers,
    )


KV = tuple[Tensor, Tensor]
"""Keys and values of all rows so far, each [1, kv_heads, n, head_dim]."""


class RowPositions(NamedTuple):
    """The places of m rows in a text."""

    positions: Tensor  # [m] int64
    cos: Tensor  # [m, head_dim] of the rotary angles
    sin: Tensor


class Rotary(nn.Module):
    """Rotary angles of positions; scaled kinds as transformers computes their frequencies."""

    frequencies: Tensor  # [head_dim / 2] float64
    _table: RowPositions | None = None  # the places of all positions up to some

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

    def forward(self, positions: Tensor, dtype: torch.dtype) -> RowPositions:
        """Return the places at [m] positions."""
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        angles = positions[:, None].to(wide) * self.frequencies.to(wide)
        angles = torch.cat([angles, angles], -1)
        cos, sin = ((part * self.scale).to(dtype) for part in (angles.cos(), angles.sin()))
        return RowPositions(positions, cos, sin)

    def rows(self, start: int, m: int, dtype: torch.dtype) -> RowPositions:
        """Return m places from position `start` on, out of a table that grows."""
        table, end = self._table, start + m
        if table is None or len(table.cos) < end or table.cos.dtype != dtype:
            every = torch.arange(grow_capacity(end), device=self.frequencies.device)
            table = self._table = self(every, dtype)
        return RowPositions(*(part[start:end] for part in table))


class Attention(nn.Module):
    """Grouped-query attention over a cache; its input may be wider than the head.

    `attend` is a function of transformers' `AttentionInterface`, which an engine may exchange.
    """

    is_causal = False  # but for its mask; transformers' name

    def __init__(self, shape: LayerShape, fed: int, number: int) -> None:
        super().__init__()
        self.shape, self.number = shape, number
        self.num_key_value_groups = shape.heads // shape.kv_heads  # transformers' name
        self.attend: Any = attend_by_torch
        rows, shared = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(fed, rows, bias=shape.qkv_bias)
        self.k_proj = nn.Linear(fed, shared, bias=shape.qkv_bias)
        self.v_proj = nn.Linear(fed, shared, bias=shape.qkv_bias)
        self.o_proj = nn.Linear(rows, shape.width, bias=shape.out_bias)
        if shape.qk_norm:
            self.q_norm = nn.RMSNorm(shape.head_dim, eps=shape.eps)
            self.k_norm = nn.RMSNorm(shape.head_dim, eps=shape.eps)

    def forward(self, x: Tensor, places: RowPositions, cache: Cache, sees: Any) -> Tensor:
        """Attend from [m, fed] rows under the mask `sees`: [m, H].

        `sees` is [m, n] bool, or [1, 1, m, n] additive; None: everything is seen.
        """
        return self.look(x, places, self.append_kv(x, places, cache), sees)

    def look(self, x: Tensor, places: RowPositions, kv: "KV | list[TextKV]", sees: Any) -> Tensor:
        """Return [m, H] attention of [m, fed] rows to `kv`, under the mask `sees` of `forward`.

        `kv` is one text's keys and values, or a list, one for each text of a common pass: then each
        text's rows attend to its own under the mask in its `TextKV`, and `sees` is not read.
        """
        m, width = len(x), self.shape.head_dim
        q = self.q_proj(x).view(m, -1, width)
        q = apply_rotary(self.q_norm(q) if self.shape.qk_norm else q, places)
        q = q.transpose(0, 1)[None]
        if isinstance(kv, list):
            parts = [(q[:, :, text.rows], *text.held, text.sees) for text in kv]
            out = torch.cat([self.attend(self, *part)[0] for part in parts], 1)
        else:
            whole = sees if sees is None or sees.ndim > 2 else sees[None, None]
            out = self.attend(self, q, *kv, whole)[0]
        kept: Tensor = self.o_proj(out.reshape(m, -1))
        return kept

    def append_kv(self, x: Tensor, places: RowPositions, cache: Cache) -> KV:
        """Append keys and values of [m, fed] rows to this layer's cache, and return all of them."""
        m, width = len(x), self.shape.head_dim
        k, v = (part(x).view(m, -1, width) for part in (self.k_proj, self.v_proj))
        k = apply_rotary(self.k_norm(k) if self.shape.qk_norm else k, places)
        return cache.update(k.transpose(0, 1)[None], v.transpose(0, 1)[None], self.number)


def attend_by_torch(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **more: Any
) -> tuple[Tensor, None]:
    """Return attention [1, m, heads, head_dim] of `query` [1, heads, m, head_dim], by torch."""
    out = scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, enable_gqa=True)
    return out.transpose(1, 2), None


class TextKV(NamedTuple):
    """The keys and values that one text of a common pass attends to."""

    rows: slice  # rows of the pass
    held: KV
    sees: Any  # as `Attention.forward` takes it


class TextCaches:
    """The caches of several texts for a common pass: each text's rows see its own keys alone.

    `sizes` are the rows of each text, `caches` and `sees` its cache and its mask.
    """

    def __init__(self, sizes: Sequence[int], caches: Sequence[Cache], sees: Sequence[Any]) -> None:
        ends = list(accumulate(sizes))
        parts = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        self._texts = list(zip(parts, caches, sees, strict=True))

    def update(self, keys: Tensor, values: Tensor, layer: int) -> list[TextKV]:
        """Append the rows [1, heads, M, width] of a layer, each to the cache of its text."""
        return [
            TextKV(rows, cache.update(keys[:, :, rows], values[:, :, rows], layer), sees)
            for rows, cache, sees in self._texts
        ]


def apply_rotary(x: Tensor, places: RowPositions) -> Tensor:
    """Rotate [m, heads, head_dim] by the angles of its rows, half against half."""
    cos, sin = places.cos[:, None], places.sin[:, None]
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin


class GatedMlp(nn.Module):
    """A gated feed-forward block."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.inner, bias=shape.mlp_bias)
        self.up_proj = nn.Linear(shape.width, shape.inner, bias=shape.mlp_bias)
        self.down_proj = nn.Linear(shape.inner, shape.width, bias=shape.mlp_bias)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))
        return output


class Layer(nn.Module):
    """A decoder layer; `normed` = whether it has a norm before its attention."""

    def __init__(self, shape: LayerShape, number: int, normed: bool = True) -> None:
        super().__init__()
        self.self_attn = Attention(shape, shape.width, number)
        self.mlp = GatedMlp(shape)
        self.input_layernorm = nn.RMSNorm(shape.width, eps=shape.eps) if normed else nn.Identity()
        self.post_attention_layernorm = nn.RMSNorm(shape.width, eps=shape.eps)

    def forward(self, x: Tensor, places: RowPositions, cache: Cache, sees: Any) -> Tensor:
        """Map [m, H] to [m, H]."""
        x = x + self.self_attn(self.input_layernorm(x), places, cache, sees)
        output: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return output
