"""A cache with room to spare: appends write in place, a rewind sets a number, nothing is copied.

transformers' `DynamicCache` concatenates keys and values at every step, so each token copies the
whole past, once a layer. Here each layer owns a buffer that is larger than its content and doubles
when it is full; the model attends to a view of what is filled.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, CacheLayerMixin, PreTrainedModel

from spsbench.errors import OutOfMemoryError
from spsbench.hardware.files import in_words
from spsbench.hardware.memory import ram
from spsbench.loop.sampling import send

FIRST = 256  # tokens that a new buffer holds
WITHOUT_KEYS = ("linear_attention", "conv", "mlp", "moe")  # kinds of layers, as transformers names


def number_of(layer: nn.Module) -> int | None:
    """Return the index of a decoder layer in a cache; None: its modules name none, or several."""
    within = [module for module in layer.modules() if module is not layer]
    numbers = {n for module in within if (n := getattr(module, "layer_idx", None)) is not None}
    return numbers.pop() if len(numbers) == 1 else None


def token_bytes(model: PreTrainedModel) -> int:
    """Return the bytes of a token's keys and values in all layers, by config; 0: no attention."""
    config = model.config.get_text_config()
    all_heads = getattr(config, "num_attention_heads", None)
    if all_heads is None:  # no layer has attention
        return 0
    heads = getattr(config, "num_key_value_heads", None) or all_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // all_heads
    kinds = getattr(config, "layer_types", None) or ()
    layers = config.num_hidden_layers - sum(kind in WITHOUT_KEYS for kind in kinds)
    return 2 * int(layers * heads * width) * int(model.dtype.itemsize)


def grow_capacity(least: int, capacity: int = 0, most: int | None = None) -> int:
    """Return `capacity`, at least `FIRST`, doubled until `least` tokens fit, but `most` at most."""
    room = max(FIRST, capacity)
    while room < least:
        room *= 2
    return room if most is None else max(least, min(room, most))


class PreallocatedLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer, `[B, heads, capacity, width]`, filled up to `length`.

    One with a window is read from row `first` on; the oldest rows may be forgotten. Beyond `most`
    tokens, the model's context, no spare room is made; None = unlimited.
    """

    def __init__(self, most: int | None, sliding: bool = False) -> None:
        super().__init__()
        self.most, self.is_sliding = most, sliding
        self.base = 0  # tokens that were forgotten; row r is token `base` + r
        self.first = self.length = self.capacity = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys = key_states[:, :, :0]
        self.values = value_states[:, :, :0]
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write `[B, heads, m, width]` after what is there; return views of all keys and values.

        A full buffer doubles, but beyond `most` is just enough. Views begin at `first`, a window's.
        """
        start, end = self.length, self.length + key_states.shape[2]
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if end > self.capacity:
            self.widen(grow_capacity(end, self.capacity, self.most))
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        self.length = end
        return self.keys[:, :, self.first : end], self.values[:, :, self.first : end]

    @property
    def token_bytes(self) -> int:
        batch, heads, _, width = self.keys.shape
        of_values = self.values.shape[1] * self.values.shape[3]
        return int(batch * (heads * width + of_values) * self.keys.itemsize)

    @property
    def addresses(self) -> tuple[int, int, int]:
        """Return the record that `program.h` calls a room."""
        return self.keys.data_ptr(), self.values.data_ptr(), self.capacity

    def widen(self, room: int) -> None:
        """Make room for as many tokens, keeping those that are there."""
        keys, values = self._moved(self.keys, room), self._moved(self.values, room)
        self.keys, self.values, self.capacity = keys, values, room

    def forget(self, count: int, spare: int) -> None:
        """Drop the oldest `count` rows, and leave room for `spare` more than are kept."""
        self.base, self.length = self.base + count, self.length - count
        self.keys, self.values = self.keys[:, :, count:], self.values[:, :, count:]
        self.widen(self.length + spare)

    def _moved(self, old: Tensor, room: int) -> Tensor:
        batch, heads, _, width = old.shape
        new = old.new_zeros(batch, heads, room, width)  # NaN in the room would outlive a mask
        new[:, :, : self.length] = old[:, :, : self.length]
        return new

    def keep(self, length: int, rows: Tensor | None = None) -> None:
        """Keep the first `length` tokens and, moved after them, those at `rows` [n], ascending."""
        self.length = length
        if rows is not None:
            self.length += len(rows)
            for buffer in self.keys, self.values:
                buffer[:, :, length : self.length] = buffer.index_select(2, rows)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows `indices` of the batch, in ascending order."""
        for buffer in self.keys, self.values:
            buffer[: len(indices), :, : self.length] = buffer[indices, :, : self.length]
        self.keys, self.values = self.keys[: len(indices)], self.values[: len(indices)]

    def reset(self) -> None:
        self.base = self.length = 0

    def get_seq_length(self) -> int:
        return self.base + self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length - self.first, self.base + self.first

    def get_max_length(self) -> int:
        return -1 if self.most is None else self.most


class PreallocatedCache(Cache):  # type: ignore[misc]
    """Cache with a `PreallocatedLayer` for each layer; `sliding` says by number which slide."""

    def __init__(self, most: int | None = None, sliding: Mapping[int, bool] | None = None) -> None:
        if not sliding:
            super().__init__(layer_class_to_replicate=lambda: PreallocatedLayer(most))
            return
        count = max(sliding) + 1
        super().__init__([PreallocatedLayer(most, sliding.get(n, False)) for n in range(count)])

    @property
    def base(self) -> int:
        """Return the number of tokens that were forgotten; row r is token `base` + r."""
        return int(self.layers[0].base) if self.layers else 0

    def look(self, first: int) -> None:
        """Let layers with a window read from token `first` on in the next pass."""
        for layer in self.layers:
            layer.first = first - layer.base if layer.is_sliding else 0

    def forget(self, first: int, spare: int) -> None:
        """Drop the rows before token `first`, which no layer reads again."""
        for layer in self.layers:
            if layer.is_initialized:
                layer.forget(first - layer.base, spare)

    @property
    def token_bytes(self) -> int:
        """Return the bytes of a token in all layers; 0 before the first."""
        return sum(layer.token_bytes for layer in self.layers if layer.is_initialized)

    def reserve(self, least: int) -> None:
        """Make room for `least` rows, those there included, in the layers that have rows already.

        It doubles where memory is free, else is just enough; OutOfMemoryError: neither; none grew.
        """
        begun = [layer for layer in self.layers if layer.is_initialized]
        capacity = min((layer.capacity for layer in begun), default=least)
        if least <= capacity:
            return
        free, room = ram()[1], grow_capacity(least, capacity, begun[0].most)
        moved = capacity * begun[0].token_bytes  # a layer is twice in memory while it is moved
        for rows in room, least:
            need = (rows - capacity) * self.token_bytes + moved
            if not free or need <= free:
                for layer in begun:
                    if layer.capacity < rows:
                        layer.widen(rows)
                return
        raise OutOfMemoryError(
            f"keys and values of {least} tokens need {in_words(need)} more, {in_words(free)} are "
            "free (this machine): expected room. Give a shorter prompt or fewer `max_new_tokens`"
        )

    def keep(self, length: int, rows: Sequence[int] = ()) -> None:
        """Keep in all layers the first `length` rows, then `rows` by their numbers from row 0."""
        index = None
        if rows and list(rows) == list(range(length, length + len(rows))):
            length += len(rows)
        elif rows:
            index = send(torch.tensor(rows), self.layers[0].keys.device)
        for layer in self.layers:
            layer.keep(length, index)
