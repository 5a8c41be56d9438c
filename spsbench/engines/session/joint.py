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

from spsbench.engines.session.masks import FULL, SLIDING, Masks

NAME = "spsbench_batch"

_pass = local()
"""The `JointCache` of this thread's pass, as `cache`."""


class Text(NamedTuple):
    """What one text brings to a pass."""

    rows: slice  # of the pass
    cache: Cache
    masks: Masks  # additive [1, 1, m, n], or one for each kind of layer; None: it sees everything


class JointCache(Cache):  # type: ignore[misc]
    """The caches of several texts as one, for models, which only append to it.

    Args:
        texts: in the order of their rows.
        sliding: by the number of a layer, whether it has a window.
    """

    def __init__(self, texts: Sequence[Text], sliding: Mapping[int, bool]) -> None:
        self.layers: list[Any] = []
        self.texts = texts
        self._sliding = sliding
        self._read: list[tuple[Tensor, Tensor, Tensor | None]] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append the rows [1, heads, M, width] of a layer, each to the cache of its text."""
        self._read = [
            (
                *text.cache.update(
                    key_states[:, :, text.rows], value_states[:, :, text.rows], layer_idx
                ),
                self._mask(text.masks, layer_idx),
            )
            for text in self.texts
        ]
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the tokens of the longest text."""
        return max(int(text.cache.get_seq_length(layer_idx)) for text in self.texts)

    def attend(self, forward: Any, module: nn.Module, query: Tensor, more: Any) -> Tensor:
        """Return attention [1, M, H, D] of `query` [1, H, M, D], each text's over its own past."""
        parts = [
            forward(module, query[:, :, text.rows], keys, values, mask, **more)[0]
            for text, (keys, values, mask) in zip(self.texts, self._read, strict=True)
        ]
        return torch.cat(parts, dim=1)

    def _mask(self, masks: Masks, layer: int) -> Tensor | None:
        if isinstance(masks, Mapping):
            return masks[SLIDING if self._sliding.get(layer) else FULL]
        return masks


@contextmanager
def attending(model: PreTrainedModel, cache: JointCache) -> Iterator[None]:
    """Let the layers of `model` attend as `JointCache.attend` does."""
    config = model.config
    before = config._attn_implementation
    _pass.cache, _pass.implementation = cache, before
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before
        del _pass.cache, _pass.implementation


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Return attention by the model's own implementation, text by text."""
    forward = _ATTENTION.get(_pass.implementation)
    if forward is None:  # "eager": a function beside each model
        beside: Any = sys.modules[type(module).__module__]
        forward = beside.eager_attention_forward
    return _pass.cache.attend(forward, module, query, more), None


_ATTENTION = AttentionInterface()
AttentionInterface.register(NAME, attend)
