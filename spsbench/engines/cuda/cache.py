"""A preallocated cache at fixed addresses: appended in place, rewound by a smaller number."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin

SMALLEST = 256  # rows; attention over fewer costs no less


def rows_for(tokens: int) -> int:
    """Return the rows that attention reads for `tokens`: `SMALLEST`, doubled until they fit.

    A function of the length alone, so that a text does not depend on what was generated before it.
    """
    rows = SMALLEST
    while rows < tokens:
        rows *= 2
    return rows


@dataclass(slots=True)
class Aim:
    """The rows that the next pass writes and reads."""

    start: int = 0  # rows before it
    reads: int = 0  # rows that attention sees
    slots: Tensor | None = None  # [m] rows to write, on the device; None = from `start` on
    capacity: int = 0  # rows of the buffers


class BufferCache(Cache):  # type: ignore[misc]
    """Keys and values of one sequence; `aim` says what the next pass writes and reads."""

    def __init__(self) -> None:
        self._aim = aim = Aim()
        super().__init__(layer_class_to_replicate=lambda: BufferLayer(aim))

    def aim(self, start: int, reads: int, slots: Tensor | None = None) -> None:
        """Let the next pass write rows `slots`, or from `start` on, and read the first `reads`."""
        self._aim.start, self._aim.reads, self._aim.slots = start, reads, slots

    def grow(self, rows: int, used: int) -> bool:
        """Make room for `rows`, keeping the first `used`; return whether addresses changed."""
        if rows <= self._aim.capacity:
            return False
        self._aim.capacity = rows
        for layer in self.layers:
            layer.keys = widened(layer.keys, rows, used)
            layer.values = widened(layer.values, rows, used)
        return True

    def clear(self) -> None:
        """Zero every row: a masked row still counts 0 times its value, which must be a number."""
        for layer in self.layers:
            layer.keys.zero_()
            layer.values.zero_()

    def move(self, rows: Tensor, to: int) -> None:
        """Copy `rows` [n] to the rows from `to` on."""
        for layer in self.layers:
            for buffer in (layer.keys, layer.values):
                buffer[:, :, to : to + len(rows)] = buffer.index_select(2, rows)

    def dynamic(self, length: int) -> Any:
        """Return the first `length` rows as transformers' growing cache."""
        copy = DynamicCache()
        for index, layer in enumerate(self.layers if length else ()):
            copy.update(layer.keys[:, :, :length], layer.values[:, :, :length], index)
        return copy


class BufferLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer, [1, heads, capacity, width] each."""

    is_sliding = False

    def __init__(self, aim: Aim) -> None:
        super().__init__()
        self._aim = aim

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Return allocate: shapes and types are those of the first pass."""
        self.keys = widened(key_states, self._aim.capacity, 0)
        self.values = widened(value_states, self._aim.capacity, 0)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write where the cache aims and return the rows that attention is to see."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        aim = self._aim
        for buffer, states in ((self.keys, key_states), (self.values, value_states)):
            if aim.slots is None:
                buffer[:, :, aim.start : aim.start + states.shape[2]] = states
            else:
                buffer.index_copy_(2, aim.slots, states)
        return self.keys[:, :, : aim.reads], self.values[:, :, : aim.reads]

    def get_seq_length(self) -> int:
        """Return the rows before a pass; raise in a pass of fixed shape.

        A recorded pass would freeze the length.
        """
        if self._aim.slots is not None:
            raise RuntimeError("its forward asks the cache for its length")
        return self._aim.start

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys of the mask, and the first key."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """Return no maximum, since the buffers grow."""
        return -1


def widened(buffer: Tensor, rows: int, used: int) -> Tensor:
    """Return a buffer of `rows` rows: the first `used` of `buffer`, and zeros."""
    wide = buffer.new_zeros(*buffer.shape[:2], rows, buffer.shape[3])
    wide[:, :, :used] = buffer[:, :, :used]
    return wide
