"""Attention of new tokens, a few or a prompt's, over a long past.

transformers' `sdpa` copies keys and values once for every query head that shares them, and torch's
kernel multiplies a single bfloat16 row slowly. On a CPU the kernel of `attention.c` reads them
where they are; a row of a prompt has the bits that it has alone. Everything else goes to `sdpa` as
it is, or to the model's own code where its scores are capped (Gemma 2) or its heads have sinks
(GPT-OSS), which `sdpa` does not know.
"""

import sys
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, sdpa_mask

from spsbench.engines.replay import MAX_ROWS
from spsbench.extensions.cpu.kernels.native import missing
from spsbench.extensions.cpu.kernels.steps import is_read, run_op

NAME = "spsbench"
CAUSAL = "spsbench_causal"  # attribute of a mask by which every token sees all up to itself
LANES = 16  # floats of a vector, as in numbers.h


def attend_fused(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Return attention [1, m, H, D] of `query` [1, H, m, D], and None for its weights.

    `key` and `value` are [1, H / g, n, D]; `attention_mask` [1, 1, m, n] is additive or boolean;
    None: a token sees all up to itself, unless `is_causal`, else the module's, is False. `softcap`
    c: scores become c tanh(score / c). `s_aux` [H]: a score for each head's sink, a key without a
    value. The names are transformers', whose code runs what the kernel cannot.
    """
    _, _, m, width = query.shape
    plain = not more.get("position_bias") and dropout == 0.0 and key.dtype == query.dtype
    causal = m == 1 if attention_mask is None else getattr(attention_mask, CAUSAL, False)
    if attention_mask is None and is_causal is not False:
        causal |= getattr(module, "is_causal", False)
    few = m <= MAX_ROWS and key.shape[2] > m and getattr(attention_mask, "ndim", 0) == 4
    mask = None if causal else attention_mask
    ready = len(query) == 1 and plain and (causal or few)
    if ready and can_attend(query, key, value, mask, s_aux):
        scale = width**-0.5 if scaling is None else scaling
        sinks = None if s_aux is None else s_aux.contiguous()
        return run_op("attend", query, key, value, mask, sinks, scale, softcap or 0.0), None
    inputs, more = (module, query, key, value, attention_mask), {**more, "scaling": scaling}
    if softcap is not None or s_aux is not None:
        return _stock(*inputs, softcap=softcap, **more)
    return sdpa_attention_forward(*inputs, dropout=dropout, is_causal=is_causal, **more)  # type: ignore[no-any-return]


def _stock(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **more: Any
) -> tuple[Tensor, None]:
    """Return attention by the eager function in the file of `module`, and None for its weights.

    It takes additive masks: a boolean one is converted, and for None a causal one is made.
    """
    m, n = query.shape[2], key.shape[2]
    lowest = torch.finfo(query.dtype).min
    if mask is None and m > 1:
        mask = query.new_full((1, 1, m, n), lowest).triu(n - m + 1)
    elif mask is not None and mask.dtype == torch.bool:
        mask = query.new_zeros(mask.shape).masked_fill(~mask, lowest)
    forward: Any = sys.modules[type(module).__module__]
    return forward.eager_attention_forward(module, query, key, value, mask, **more)[0], None


def causal_mask(**arguments: Any) -> Tensor | None:
    """Return the mask that `sdpa_mask` makes, with the attribute `CAUSAL` if it is causal alone.

    The kernel needs no numbers of such a mask. None: `sdpa_mask` makes none.
    """
    mask: Tensor | None = sdpa_mask(**arguments)
    if mask is None:
        return None
    aligned = arguments.get("q_offset") == mask.shape[3] - mask.shape[2]
    triangle = arguments.get("mask_function") is causal_mask_function and aligned
    if triangle and not arguments.get("kv_offset"):
        setattr(mask, CAUSAL, arguments.get("attention_mask") is None)
    return mask


def can_attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, sinks: Tensor | None = None
) -> bool:
    """Return whether there is a kernel for these shapes, strides, dtypes and devices."""
    (_, heads, _, width), dtype = query.shape, query.dtype
    alike = key.shape == value.shape == (1, key.shape[1], key.shape[2], width)
    near = {query.device.type, key.device.type} == {"cpu"}
    rowwise = (key.stride()[2:], value.stride()[2:]) == ((width, 1), (width, 1))
    rowwise &= key.stride(1) % width == 0
    whole = query.stride(-1) == 1 and width % LANES == 0 and heads % key.shape[1] == 0
    kinds = {query.dtype, key.dtype, value.dtype, *([] if sinks is None else [sinks.dtype])}
    fits = mask is None or is_read(mask, query.shape[2], key.shape[2], dtype)
    ours = near and len(kinds) == 1 and missing(dtype) is None
    return alike and rowwise and whole and fits and ours


AttentionInterface.register(NAME, attend_fused)
AttentionMaskInterface.register(NAME, causal_mask)
