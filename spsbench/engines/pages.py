"""Tensors in huge pages.

Weights lie one after another in one mapping, so that no huge page is begun for a small one alone.
Where the system has no huge pages to give, the mapping has the usual ones.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from spsbench.machine.huge_pages import huge_mapping

ALIGNED = 64  # bytes: a line of the cache
HUGE = 2 * 2**20  # bytes of a huge page on x86-64 and, mostly, on aarch64


class Mapping:
    """Room for `size` bytes of tensors, taken front to back, given back with the last of them."""

    def __init__(self, size: int) -> None:
        whole = torch.frombuffer(huge_mapping(size + HUGE), dtype=torch.uint8)
        start = -whole.data_ptr() % HUGE
        self._free = whole[start : start + size]

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
        """Uninitialized; None: there is no room left."""
        size = dtype.itemsize
        for length in shape:
            size *= length
        if size > len(self._free):
            return None
        taken, self._free = self._free[:size], self._free[size + -size % ALIGNED :]
        return taken.view(dtype).view(shape)


_CURRENT: ContextVar[Mapping | None] = ContextVar("mapping", default=None)


@contextmanager
def huge_pages(size: int) -> Iterator[None]:
    """Within it, `empty` takes up to `size` bytes in huge pages, where there are so many."""
    try:
        token = _CURRENT.set(Mapping(size) if size else None)
    except OSError:  # the system promises no more memory than it has
        token = _CURRENT.set(None)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """As `torch.empty`, in huge pages where `huge_pages` has reserved some."""
    mapping = _CURRENT.get()
    made = None if mapping is None else mapping.empty(shape, dtype)
    return torch.empty(shape, dtype=dtype) if made is None else made
