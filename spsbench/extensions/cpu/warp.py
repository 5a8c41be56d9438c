"""The warp in a kernel: laws of a CPU's logits in one call, where torch takes ten."""

from ctypes import Structure, addressof, c_double, c_int64
from dataclasses import fields
from typing import Self

import torch
from torch import Tensor

from spsbench.extensions.cpu.kernels.native import KINDS, kernel, missing
from spsbench.loop.sampling import MANY, Warp


class KernelWarp(Warp):
    """A `Warp` whose distributions come from a kernel where there is one, equal up to rounding."""

    __slots__ = ()

    def __call__(self, logits: Tensor) -> Tensor:
        """Map [..., V] logits to distributions, as `Warp` does."""
        rows = logits if logits.dim() == 2 else logits.reshape(-1, logits.shape[-1])
        if not self._takes(rows):
            return Warp.__call__(self, logits)
        laws = torch.empty(rows.shape, dtype=torch.float32, device="cpu")
        record, (count, size) = WarpRecord.of(self), rows.shape
        kernel("laws", rows.dtype)(
            *(rows.data_ptr(), laws.data_ptr(), count, rows.stride(0), size),
            *(addressof(record), torch.get_num_threads()),
        )
        return laws.view(logits.shape)

    def _takes(self, rows: Tensor) -> bool:
        """Return whether the kernel can warp `rows` [n, V], and does so faster than torch."""
        cuts_nucleus = self.top_p < 1 and self.temperature >= torch.finfo(torch.float32).tiny
        return (
            (cuts_nucleus or rows.shape[-1] >= MANY)  # with few tokens torch is as fast
            and type(rows) is Tensor
            and rows.device.type == "cpu"
            and not rows.requires_grad
            and rows.dtype in KINDS
            and rows.stride(1) == 1
            and missing(rows.dtype) is None
            and all(f.name in IN_KERNEL or getattr(self, f.name) == f.default for f in fields(self))
        )


class WarpRecord(Structure):
    """The record `warp` of laws.h."""

    _fields_ = (
        *(("temperature", c_double), ("top_p", c_double), ("min_p", c_double)),
        ("top_k", c_int64),
    )

    @classmethod
    def of(cls, warp: Warp) -> Self:
        """Return the record of a warp."""
        return cls(**{name: getattr(warp, name) for name, *_ in cls._fields_})


IN_KERNEL = frozenset(name for name, *_ in WarpRecord._fields_)
