"""Tensors in huge pages: over pages of 4 KiB, reading stops at each to look up where it is.

Weights lie one after another in one mapping, so that no huge page is begun for a small one alone.
Where the system has no huge pages to give, the mapping has the usual ones.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from math import prod

import torch
from torch import Tensor

from spsbench.hardware.memory import huge_mapping

ALIGNED = 64  # bytes: a line of the cache
HUGE = 2 * 2**20  # bytes of a huge page on x86-64 and, mostly, on aarch64


_LEFT: ContextVar[list[Tensor]] = ContextVar("left")
"""The memory that `empty` may take: one tensor [bytes] uint8, or none."""


@contextmanager
def huge_pages(size: int) -> Iterator[None]:
    """Let `empty` take up to `size` bytes in huge pages within the block, where there are so many.

    They are given back with the last tensor.
    """
    left: list[Tensor] = []
    with suppress(OSError):  # the system promises no more memory than it has
        whole = torch.frombuffer(huge_mapping(size + HUGE), dtype=torch.uint8)
        start = -whole.data_ptr() % HUGE
        left = [whole[start : start + size]]
    token = _LEFT.set(left)
    try:
        yield
    finally:
        _LEFT.reset(token)


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return what `torch.empty` does, in the memory of `huge_pages` while there is enough left."""
    left, size = _LEFT.get([]), prod(shape) * dtype.itemsize
    if not left or size > len(left[0]):
        return torch.empty(shape, dtype=dtype)
    place, left[0] = left[0][:size], left[0][size + -size % ALIGNED :]
    return place.view(dtype).view(shape)
