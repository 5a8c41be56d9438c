"""One pass of a model for several texts, each over a cache of its own.

The rows of all texts stand one after another in one sequence, so that every product runs over all
of them at once; there is no padding, and nothing is realigned. Only attention looks at one text at
a time: at its own keys and values, at its own positions, under its own mask.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import local
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, Cache, PreTrainedModel

from spsbench.engines.session.cache import PreallocatedLayer
from spsbench.engines.session.masks import FULL, SLIDING, Masks

NAME = "spsbench_batch"

_pass = local()
"""The `JointCache` of this thread's pass, as `cache`."""


class SequenceSlice(NamedTuple):
    """One sequence's rows, cache and mask in a joint pass."""

    rows: slice  # the text's rows in the pass
    cache: Cache
    masks: Masks  # additive [1, 1, m, n], or one for each kind of layer; None: it sees everything

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return the six numbers that `program.h` calls a text; all layers read the same rows."""
        count, layer = self.rows.stop - self.rows.start, self.cache.layers[0]
        end = layer.length + count
        mask = self.masks if isinstance(self.masks, Tensor) else None
        where = (0, 0) if mask is None else (mask.data_ptr(), mask.stride(2))
        return self.rows.start, count, end, end - layer.first, *where


class TextLayers:
    """A layer's part of the caches of several texts, for a replay.

    Lengths are as if each text ended where the pass of a stand-in does, after `end` tokens. `texts`
    are the `SequenceSlice.numbers` of all, from before the pass.
    """

    def __init__(
        self, layers: Sequence[PreallocatedLayer], numbers: Sequence[int], end: int
    ) -> None:
        self.texts, self._layers, self._end = numbers, layers, end
        self._ends = numbers[2::6]

    @property
    def capacity(self) -> int:
        """Return the room, of the text with the least."""
        return self._end + min(layer.capacity - end for layer, end in self._pairs)

    @property
    def length(self) -> int:
        """Return the length, of the text with the most."""
        return self._end + max(layer.length - end for layer, end in self._pairs)

    @length.setter
    def length(self, end: int) -> None:
        for layer, own_end in self._pairs:
            layer.length = own_end

    @property
    def addresses(self) -> list[int]:
        """Return the records that `program.h` calls rooms, one a text."""
        return [number for layer in self._layers for number in layer.addresses]

    @property
    def _pairs(self) -> Iterator[tuple[PreallocatedLayer, int]]:
        return zip(self._layers, self._ends, strict=True)


class JointCache(Cache):  # type: ignore[misc]
    """The caches of several texts as one, for models, which only append to it.

    `texts` are in the order of their rows; `sliding`: by a layer's number, whether it has a window.
    """

    def __init__(self, texts: Sequence[SequenceSlice], sliding: Mapping[int, bool]) -> None:
        self.layers: list[Any] = []
        self.texts = texts
        self._sliding = sliding
        self._read: list[tuple[Tensor, Tensor, Tensor | None]] = []
        self._given: Tensor | None = None
        self.mask: Tensor | None = None  # which no layer reads: a model makes none
        self.end = 0  # tokens, after the pass, of a text that stands for all of them

    @property
    def rows(self) -> int:
        """Return the rows of the pass."""
        return int(self.texts[-1].rows.stop)

    def prepare(self, dtype: torch.dtype) -> bool:
        """Set `layers`, `mask` and `end` for a replay; return whether a replay can read the texts.

        It can, else nothing is set, where layers are preallocated, begun, and all or none windowed.
        """
        first = [text.cache.layers for text in self.texts]
        plain = all(text.masks is None or isinstance(text.masks, Tensor) for text in self.texts)
        ready = all(isinstance(layer, PreallocatedLayer) for layers in first for layer in layers)
        alike = len(set(self._sliding.values())) < 2  # all have a window, or none
        if not (alike and plain and ready and all(layer.is_initialized for layer in first[0])):
            return False
        self.end = end = self.rows + 1
        self.mask = torch.zeros(1, 1, self.rows, end, dtype=dtype)
        numbers = [number for text in self.texts for number in text.numbers]
        self.layers = [TextLayers(layers, numbers, end) for layers in zip(*first, strict=True)]
        return True

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append each text's rows to its own cache; return the arguments, which nobody reads."""
        self._read = []
        for text in self.texts:
            new = key_states[:, :, text.rows], value_states[:, :, text.rows]
            keys, values = text.cache.update(*new, layer_idx)
            self._read.append((keys, values, self._mask(text.masks, layer_idx)))
        self._given = key_states
        return key_states, value_states

    def has(self, key: Tensor) -> bool:
        """Return whether `key` came from `update`: a recording has keys of its own."""
        return key is self._given

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the tokens of the longest text."""
        return max(int(text.cache.get_seq_length(layer_idx)) for text in self.texts)

    def attend(self, forward: Any, module: nn.Module, query: Tensor, more: Any) -> Tensor:
        """Return attention [1, M, H, D] of `query` [1, H, M, D], each text's over its own past."""
        parts = []
        for text, read in zip(self.texts, self._read, strict=True):
            keys, values, mask = read
            parts.append(forward(module, query[:, :, text.rows], keys, values, mask, **more)[0])
        return torch.cat(parts, dim=1)

    def _mask(self, masks: Masks, layer: int) -> Tensor | None:
        if isinstance(masks, Mapping):
            return masks[SLIDING if self._sliding.get(layer) else FULL]
        return masks


@contextmanager
def attending(model: PreTrainedModel, cache: JointCache) -> Iterator[None]:
    """Let `model` attend by text over `cache` in a block, in which no other thread may run it."""
    config = model.config
    before = config._attn_implementation
    _pass.cache, _pass.implementation = cache, before
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before
        del _pass.cache, _pass.implementation


def attend_by_text(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Return attention by the model's code; for keys of the joint cache by text, with its mask."""
    forward = _ATTENTION.get(_pass.implementation)
    if forward is None:  # "eager": a function beside each model
        code: Any = sys.modules[type(module).__module__]
        forward = code.eager_attention_forward
    if not _pass.cache.has(key):
        output: tuple[Tensor, None] = forward(module, query, key, value, attention_mask, **more)
        return output
    return _pass.cache.attend(forward, module, query, more), None


_ATTENTION = AttentionInterface()
AttentionInterface.register(NAME, attend_by_text)
