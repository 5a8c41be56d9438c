"""Weights in oneDNN's blocked order, for its own products; needs nothing but torch.

A product of 1 to 8 tokens with a stock weight either re-orders it on every call or runs a kernel
made for large batches: scoring five tokens then costs two to five times one token. Blocked once,
five cost about as much as one.
"""

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from spsbench.engines.packing.linear_layers import Packed

BLOCKS = {torch.float32: (16, 64, 1), torch.bfloat16: (16, 64, 2)}
"""(a, b, c) of `[out / b, in / (a c), a, b, c]`, which oneDNN chooses on AVX-512; another machine
may have others."""
onednn: Any = torch.ops.mkldnn


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `x W^T + b` over a blocked W."""
    made: Tensor = onednn._linear_pointwise(x, weight, bias, "none", [], "")
    return made


@cache
def _refuses(dtype: torch.dtype) -> str | None:
    """Return why oneDNN multiplies no blocked weights of `dtype` on this processor, else None.

    A small product is tried: which instructions oneDNN needs for bfloat16 is its own affair, and
    `ONEDNN_MAX_CPU_ISA` may keep it from those that the processor has.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "this PyTorch was built without oneDNN"
    try:
        weight = onednn._reorder_linear_weight(torch.zeros(64, 64, dtype=dtype))
        product(torch.zeros(1, 5, 64, dtype=dtype), weight, None)
    except RuntimeError as error:
        return f"oneDNN blocks no {dtype} on this processor ({str(error).splitlines()[0]})"
    return None


class OneDnnLinear(Packed):
    """`x W^T + b` over a blocked W."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Lay out `weight` [out, in], which `refuses` accepts."""
        super().__init__(weight, bias)
        packed = onednn._reorder_linear_weight(weight)
        self.weight = nn.Parameter(packed, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., out] of [..., in]."""
        return product(x, self.weight, self.bias)

    @classmethod
    def refuses(cls, weight: Tensor) -> str | None:
        """Refuse other numbers than float32 and bfloat16, and those oneDNN refuses here."""
        if weight.dtype not in BLOCKS:
            return f"oneDNN blocks float32 and bfloat16, not {weight.dtype}"
        return _refuses(weight.dtype)

    def dense(self) -> Tensor:
        """Return W [out, in]."""
        return self.weight.to_dense()

    def rows(self, ids: Tensor) -> Tensor:
        """Return rows [n] of W, [n, in]."""
        a, b, c = BLOCKS[self.weight.dtype]
        blocks = self._memory().view(-(-self.out_features // b), -1, a, b, c)
        return blocks[ids // b, :, :, ids % b].flatten(1)[:, : self.in_features]

    def is_readable(self, weight: Tensor) -> bool:
        """Compare every row: oneDNN does not document its blocks."""
        ends = torch.tensor([0, 1, len(weight) - 1])
        try:
            if not torch.equal(self.rows(ends), weight[ends]):
                return False
        except (RuntimeError, IndexError):  # the blocks do not fill the buffer
            return False
        every = torch.arange(len(weight)).chunk(1 + len(weight) // 4096)
        return all(torch.equal(self.rows(ids), weight[ids]) for ids in every)

    def _memory(self) -> Tensor:
        """Return all numbers of the blocked weight in memory order, a view."""
        size = onednn._nbytes(self.weight)
        memory = (ctypes.c_uint8 * size).from_address(onednn.data_ptr(self.weight))
        return torch.frombuffer(memory, dtype=self.weight.dtype)
