"""Tensors in huge pages: over pages of 4 KiB, reading stops at each to look up where it is.

Weights lie one after another in one mapping, so that no huge page is begun for a small one alone.
Where the system has no huge pages to give, the mapping has the usual ones.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from spsbench.hardware.memory import huge_mapping

ALIGNED = 64  # bytes: a line of the cache
HUGE = 2 * 2**20  # bytes of a huge page on x86-64 and, mostly, on aarch64


class Arena:
    """Memory for tensors, taken front to back, given back with the last of them.

    Args:
        memory: [bytes] uint8.
    """

    def __init__(self, memory: Tensor) -> None:
        self._memory = memory
        self._taken = 0

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
        """Return the next tensor, uninitialized; None: the arena has no place for it."""
        size = dtype.itemsize
        for length in shape:
            size *= length
        if size > len(self._memory) - self._taken:
            return None
        place = self._memory[self._taken : self._taken + size]
        self._taken += size + -size % ALIGNED
        return place.view(dtype).view(shape)


_CURRENT: ContextVar[Arena | None] = ContextVar("arena", default=None)


@contextmanager
def huge_pages(size: int) -> Iterator[None]:
    """Let `empty` take up to `size` bytes in huge pages, where there are so many."""
    token = _CURRENT.set(_arena(size))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def _arena(size: int) -> Arena | None:
    """Return an arena of `size` bytes; None: the system promises no more memory than it has."""
    if not size:
        return None
    try:
        whole = torch.frombuffer(huge_mapping(size + HUGE), dtype=torch.uint8)
    except OSError:
        return None
    start = -whole.data_ptr() % HUGE
    return Arena(whole[start : start + size])


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a tensor as `torch.empty` does, in huge pages within `huge_pages`."""
    arena = _CURRENT.get()
    tensor = None if arena is None else arena.take(shape, dtype)
    return torch.empty(shape, dtype=dtype) if tensor is None else tensor
