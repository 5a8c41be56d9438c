"""Attention of a few new tokens over a long past, on a CPU.

transformers' `sdpa` copies keys and values once for every query head that shares them, and torch's
kernel multiplies a single bfloat16 row slowly. Here the heads that share keys become rows of one
product, and a single row is computed in float32. Everything else goes to `sdpa` as it is.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "spsbench"
FEW = 32  # new tokens
HALF = (torch.bfloat16, torch.float16)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """`query` [1, H, m, D] over `key`, `value` [1, H / g, n, D] -> [1, m, H, D].

    `attention_mask` [1, 1, m, n] is additive or boolean; None: one token, which sees everything.
    """
    _, heads, m, width = query.shape
    shared = key.shape[1]
    few = key.device.type == "cpu" and m <= FEW and key.shape[2] > m
    masked = attention_mask is None if m == 1 else attention_mask is not None
    plain = not more.get("position_bias") and dropout == 0.0 and key.dtype == query.dtype
    if not (few and masked and plain) or (attention_mask is not None and attention_mask.ndim != 4):
        found: tuple[Tensor, None] = sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            is_causal=is_causal,
            **more,
        )
        return found
    group = heads // shared
    rows = query.reshape(1, shared, group * m, width)
    mask = attention_mask
    if mask is not None and group > 1:
        mask = mask.repeat(1, 1, group, 1)
    if group * m == 1 and query.dtype in HALF:
        out = _single(rows, key, value, scaling)
    else:
        out = scaled_dot_product_attention(rows, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(1, heads, m, value.shape[-1]).transpose(1, 2).contiguous(), None


def _single(query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
    """One row a head, in float32."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    weights = (query.float() * scale) @ key.float().transpose(-1, -2)
    return (weights.softmax(-1) @ value.float()).to(query.dtype)


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
