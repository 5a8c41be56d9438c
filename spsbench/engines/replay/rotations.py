"""Rotations of queries and keys by one operator each, in traces of layers.

transformers writes a rotation out as a dozen operators, in a function of the module of a model. It
is exchanged while a layer is traced only, and computes the same bits: a replay is compared with
the layer's own code.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from spsbench.engines.kernels.operators import in_c

NAME = "apply_rotary_pos_emb"  # as modules of transformers call it

Rotation = Callable[..., tuple[Tensor, Tensor]]


@contextmanager
def one_rotation(layer: nn.Module) -> Iterator[None]:
    """Let modules of `layer` rotate by one operator, where they rotate in the usual way."""
    modules = {sys.modules.get(type(part).__module__) for part in layer.modules()}
    with ExitStack() as stack:
        for module in modules:
            stock = getattr(module, NAME, None)
            if stock is not None and usual(stock):
                stack.callback(setattr, module, NAME, stock)
                setattr(module, NAME, partial(rotated, stock))
        yield


def rotated(
    stock: Rotation, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **named: Any
) -> tuple[Tensor, Tensor]:
    """Return `q` [1, H, m, D], `k` [1, H / g, m, D] rotated by `cos` and `sin` [1, m, D].

    Other inputs are rotated as by `stock`.
    """
    operator = in_c("rotate")
    if operator is None or args or named or not (_fits(q, cos, sin) and _fits(k, cos, sin)):
        return stock(q, k, cos, sin, *args, **named)
    return operator(q, cos, sin), operator(k, cos, sin)


def _fits(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Return whether the kernel can read these: bfloat16, which rounds alike everywhere."""
    tables = cos.shape == sin.shape == (1, *x.shape[2:]) and cos.is_contiguous()
    kinds = {x.dtype, cos.dtype, sin.dtype} == {torch.bfloat16} and x.device.type == "cpu"
    rows = x.ndim == 4 and len(x) == 1 and x.stride(-1) == 1 and x.shape[-1] % 2 == 0
    return rows and kinds and tables and sin.is_contiguous()


@cache
def usual(stock: Rotation) -> bool:
    """Return whether `stock` computes what the operator does, bit for bit, by trial."""
    if in_c("rotate") is None:
        return False
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, n, 3, 16, generator=generator).bfloat16() for n in (4, 2))
    cos, sin = (torch.randn(1, 3, 16, generator=generator).bfloat16() for _ in range(2))
    try:
        found, ours = stock(q, k, cos, sin), rotated(stock, q, k, cos, sin)
        return len(found) == 2 and all(map(torch.equal, found, ours))
    except Exception:  # other arguments, or foreign code
        return False
