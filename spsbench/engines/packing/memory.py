"""Tensors in huge pages, or in those of a file that holds them already.

Weights lie one after another in one room, so that no huge page is begun for a small one alone.
Where the system has no huge pages to give, a room has the usual ones.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from spsbench.hardware.huge_pages import huge_mapping

ALIGNED = 64  # bytes: a line of the cache
HUGE = 2 * 2**20  # bytes of a huge page on x86-64 and, mostly, on aarch64


class Room:
    """Memory for tensors, taken front to back, given back with the last of them.

    Args:
        memory: [bytes] uint8.
        written: it holds the numbers of all tensors that will be taken, in their order.
    """

    def __init__(self, memory: Tensor, *, written: bool = False) -> None:
        self._memory = memory
        self._taken = 0
        self.written = written

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
        """The next tensor, uninitialized unless the room is `written`; None: it has no place."""
        size = dtype.itemsize
        for length in shape:
            size *= length
        if size > len(self._memory) - self._taken:
            return None
        place = self._memory[self._taken : self._taken + size]
        self._taken += size + -size % ALIGNED
        return place.view(dtype).view(shape)

    @property
    def taken(self) -> Tensor:
        """[bytes] uint8: from the first tensor to the last."""
        return self._memory[: self._taken]


def huge_room(size: int) -> Room | None:
    """Of `size` bytes, zeros; None: of none, or the system promises no more memory than it has."""
    if not size:
        return None
    try:
        whole = torch.frombuffer(huge_mapping(size + HUGE), dtype=torch.uint8)
    except OSError:
        return None
    start = -whole.data_ptr() % HUGE
    return Room(whole[start : start + size])


_CURRENT: ContextVar[Room | None] = ContextVar("room", default=None)


@contextmanager
def within(room: Room | None) -> Iterator[None]:
    """Within it, tensors are taken from `room`, as long as it has place for them."""
    token = _CURRENT.set(room)
    try:
        yield
    finally:
        _CURRENT.reset(token)


@contextmanager
def huge_pages(size: int) -> Iterator[None]:
    """Within it, tensors take up to `size` bytes in huge pages, where there are so many."""
    with within(huge_room(size)):
        yield


def laid(shape: tuple[int, ...], dtype: torch.dtype, lay: Callable[[Tensor], object]) -> Tensor:
    """A tensor that `lay` fills, unless its room is written."""
    room = _CURRENT.get()
    made = None if room is None else room.take(shape, dtype)
    if made is not None and room is not None and room.written:
        return made
    made = torch.empty(shape, dtype=dtype) if made is None else made
    lay(made)
    return made


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """As `torch.empty`, in huge pages where `huge_pages` has reserved some."""
    return laid(shape, dtype, lambda made: None)
