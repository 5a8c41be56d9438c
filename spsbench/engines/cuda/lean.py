"""Fewer kernels in a recorded pass: transformers' small modules by one operator each.

At batch size 1 a small kernel costs its start, some microseconds, whatever it computes. What is
exchanged here is exchanged while a pass is recorded only: the model itself stays as it is, for
prompts, for other engines and for transformers' own `generate`.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.activations import NewGELUActivation
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from spsbench.engines.replay.norms import module_is_rms_norm, one_norm

SHARED = "spsbench_shared"


@contextmanager
def lean(model: PreTrainedModel) -> Iterator[None]:
    """Within, passes of `model` run in fewer operators and compute the same up to rounding."""
    with ExitStack() as stack:
        for module in model.modules():
            if "forward" in vars(module):  # somebody else's
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
    """`NewGELUActivation`, written out there as eight operators."""
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
    """`query` [1, H, m, D] over `key`, `value` [1, H / g, n, D] -> [1, m, H, D].

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


AttentionInterface.register(SHARED, attend_shared)
AttentionMaskInterface.register(SHARED, sdpa_mask)
