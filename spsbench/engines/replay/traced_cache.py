"""What stands for a cache while a layer is traced: buffers that are inputs of the trace."""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from spsbench.engines.kernels.native import KINDS
from spsbench.engines.kernels.operators import in_c


class TracedCache(Cache):  # type: ignore[misc]
    """Writes at the end of the span, whatever its length is in a replay.

    Args:
        span: [past + m], only its length is used.
        seen: [n] of it, what the layer reads: less where it has a window.
        keys: [1, heads, capacity, width], and `values`: where they are written.
    """

    def __init__(self, span: Tensor, seen: Tensor, keys: Tensor, values: Tensor) -> None:
        self.layers: list[Any] = []
        self.span, self.seen, self.keys, self.values = span, seen, keys, values

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write `[1, heads, m, width]` after what is there; views of keys and values to read."""
        put = in_c("put")
        if put is not None and _fits(self.keys, key_states) and _fits(self.values, value_states):
            made: Any = put(self.keys, self.values, key_states, value_states, self.span, self.seen)
            keys, values = made
            return keys, values
        new, end, seen = key_states.shape[2], self.span.shape[0], self.seen.shape[0]
        self.keys.narrow(2, end - new, new).copy_(key_states)
        self.values.narrow(2, end - new, new).copy_(value_states)
        return self.keys.narrow(2, end - seen, seen), self.values.narrow(2, end - seen, seen)

    def get_seq_length(self, *args: Any, **kwargs: Any) -> int:
        """It is another number in every replay: who asks runs its own code.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("a layer asks how many tokens are cached")


def _fits(room: Tensor, states: Tensor) -> bool:
    """Whether the operator can write `states` into `room`."""
    kinds = room.dtype == states.dtype and room.dtype in KINDS and room.device == states.device
    rows = states.ndim == room.ndim == 4 and states.stride(-1) == room.stride(-1) == 1
    return kinds and rows and len(states) == len(room) == 1 and room.device == torch.device("cpu")
