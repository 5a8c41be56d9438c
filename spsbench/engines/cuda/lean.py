"""Fewer kernels in a recorded pass: transformers' small modules by one operator each.

At batch size 1 a small kernel costs its launch, some microseconds. Modules are replaced only while
a pass is recorded: the model itself is unchanged for prompts, other engines and transformers' own
`generate`.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, rms_norm, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.activations import NewGELUActivation
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NARROW = (torch.float32, torch.bfloat16, torch.float16)  # dtypes that norms compute in float32
SHARED = "spsbench_shared"


@contextmanager
def lean(model: PreTrainedModel) -> Iterator[None]:
    """Run passes of `model` in fewer operators; they compute the same up to rounding."""
    with ExitStack() as stack:
        for module in model.modules():
            if "forward" in vars(module):  # replaced by another library
                continue
            if type(module) is NewGELUActivation:
                module.forward = tanh_gelu
            elif module_is_rms_norm(module):
                module.forward = one_norm(module)
            else:
                continue
            stack.callback(delattr, module, "forward")
        config = model.config.get_text_config()
        if config._attn_implementation == "sdpa":
            stack.callback(setattr, config, "_attn_implementation", "sdpa")
            config._attn_implementation = SHARED
        yield


def tanh_gelu(x: Tensor) -> Tensor:
    """Return `NewGELUActivation` of `x`, which transformers computes by eight operators."""
    return gelu(x, approximate="tanh")


def attend_shared(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Return attention [1, m, H, D] of `query` [1, H, m, D].

    `key` and `value` are [1, H / g, n, D].

    transformers' `sdpa` copies keys and values for each of the g heads that share them, in every
    layer of every pass. Here those heads are rows of one product: g * m rows, and the mask g times.
    """
    _, heads, m, width = query.shape
    shared = key.shape[1]
    mask = attention_mask
    plain = not more.get("position_bias") and not more.get("dropout")
    if heads == shared or m == 1 or not plain or mask is None or mask.shape[:2] != (1, 1):
        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, mask, scaling=scaling, **more
        )
        return found
    rows = query.reshape(1, shared, heads // shared * m, width)
    seen = mask.repeat(1, 1, heads // shared, 1)
    out = scaled_dot_product_attention(rows, key, value, attn_mask=seen, scale=scaling)
    return out.reshape(1, heads, m, value.shape[-1]).transpose(1, 2).contiguous(), None


def module_is_rms_norm(module: nn.Module) -> bool:
    """Return whether `module` is the usual norm, computed in float32."""
    kind: Any = type(module)
    weight = getattr(module, "weight", None)
    named = kind.__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon")
    return named and weight is not None and weight.dtype in NARROW and usual(kind)


@cache
def usual(kind: Any) -> bool:
    """Return whether `kind` computes `rms_norm`, by trial of one of its own on the CPU."""
    x = torch.linspace(-2, 3, 24).reshape(3, 8)
    try:
        with torch.no_grad():
            module = kind(8, eps=0.25)
            module.weight.copy_(torch.linspace(-1, 2, 8))
            ours = one_norm(module)(x)
            return torch.allclose(module(x), ours, rtol=1e-5, atol=1e-6)
    except Exception:  # another constructor, or foreign code
        return False


def one_norm(module: nn.Module) -> Any:
    """Return the forward of an RMS norm as one operator of torch's own."""
    weight, eps = cast(Tensor, module.weight), cast(float, module.variance_epsilon)
    stock = type(module).forward

    def forward(x: Tensor) -> Any:
        if x.dtype != weight.dtype:
            return stock(module, x)
        return rms_norm(x, weight.shape, weight, eps)

    return forward


AttentionInterface.register(SHARED, attend_shared)
AttentionMaskInterface.register(SHARED, sdpa_mask)
