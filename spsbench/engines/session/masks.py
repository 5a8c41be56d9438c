"""Attention masks of chains, trees and sliding windows, and the request of a pass.

Causal masks are views of one matrix. A step computes no mask; a pass over a tree writes the corner
of its nodes.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedConfig, PreTrainedModel

from spsbench.engines.session.cache import number_of
from spsbench.loop.tree import block_visible, node_positions


class CausalMasks:
    """Additive masks [1, 1, m, past + m]: row i sees the past and the new tokens up to i.

    All masks of one m are the right ends of one matrix: zeros, then the causal triangle. With a
    `window`, the keys that a row sees, its own among them, the left of it is hidden too, by a
    triangle as well.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device, window: int | None = None) -> None:
        self._dtype, self._device, self._window = dtype, device, window
        self._widest: dict[int, Tensor] = {}
        self._trees: dict[int, Tensor] = {}  # the same, with the corner of the last tree
        self._corners: dict[int, int] = {}  # how wide that is

    def mask(self, past: int, m: int) -> Tensor:
        """Return the mask of `m` tokens after `past` cached ones: a view, not to be written to."""
        return self._aligned(self._end(self._widest, past, m))

    def branched(self, past: int, m: int, parents: Tensor) -> Tensor:
        """Return the mask of `m` tokens; the last N, cached ones included, are nodes of a tree.

        `parents` [N] has -1 at children of the text. No window is applied. The next call with the
        same m overwrites the mask, but for a GPU's, which is a copy.
        """
        mask, sees = self._end(self._trees, past, m), block_visible(parents, m)
        wide = max(sees.shape[1], self._corners.get(m, m))  # what the last tree wrote is cleared
        self._corners[m] = sees.shape[1]
        mask[:, :, :, past + m - min(wide, past + m) :] = 0
        mask[:, :, :, past + m - sees.shape[1] :].masked_fill_(
            ~sees.to(self._device), torch.finfo(self._dtype).min
        )
        return self._aligned(mask)

    def _end(self, widest: dict[int, Tensor], past: int, m: int) -> Tensor:
        masks = widest.get(m)
        if masks is None or masks.shape[-1] < past + m:
            masks = widest[m] = self._make(2 * past + m, m)
        return masks[:, :, :, masks.shape[-1] - past - m :]

    def _aligned(self, mask: Tensor) -> Tensor:
        """Return `mask`, on a GPU a copy: attention there reads vectors from aligned addresses."""
        return mask.clone() if self._device.type == "cuda" else mask

    def _make(self, width: int, m: int) -> Tensor:
        lowest = torch.finfo(self._dtype).min
        hidden = torch.full((m, width), lowest, dtype=self._dtype, device=self._device)
        masks = hidden.triu(width - m + 1)
        if self._window is not None:
            masks += hidden.tril(width - m - self._window)
        return masks[None, None]


FULL, SLIDING = "full_attention", "sliding_attention"  # transformers' words
ALIGNED = 16  # keys: where a view may begin, such that sums are added up in one order
SPARE = 64  # rows out of the window that are kept, and by which a cache grows before it forgets
TRIED = 4  # the window of a trial, which a few tokens cross

Masks = Tensor | Mapping[str, Tensor | None] | None


class PassInputs(NamedTuple):
    """Inputs of a forward pass, and which of its outputs to return."""

    ids: Tensor  # [m]
    positions: Tensor  # [m]
    masks: Masks
    cache: Cache
    keep: int  # rows of logits, one or more
    layers: tuple[int, ...] = ()  # hidden states to return
    start: int | None = None  # the first position, where the others follow it one by one
    unread: bool = False  # the logits are for nobody

    def of(self, model: PreTrainedModel, body: nn.Module | None = None) -> Any:
        """Return the output of `model`; of its `body` alone, where it is given, without logits."""
        keep = {} if body else {"logits_to_keep": self.keep}
        return (body or model)(
            input_ids=self.ids[None],
            position_ids=self.positions[None],
            attention_mask=self.masks,
            past_key_values=self.cache,
            use_cache=True,
            output_hidden_states=bool(self.layers),
            **keep,
        )


@dataclass(frozen=True)
class Windows:
    """The sliding windows of a model."""

    size: int  # keys that are seen through it
    sliding: Mapping[int, bool]  # by the number of a layer in the cache, whether it has one
    mapped: bool  # the model takes a mask for each kind of layer, by its name; else one for all

    @property
    def forgets(self) -> bool:
        """Return whether old rows can be forgotten: no layer sees all of them."""
        return all(self.sliding.values())

    def held(self, tokens: int) -> int:
        """Return the most rows that a cache keeps of a text of `tokens` tokens between passes."""
        return min(tokens, self.size + 2 * SPARE + ALIGNED) if self.forgets else tokens

    def first(self, earliest: int) -> int:
        """Return a key at or before the first that tokens from position `earliest` on see."""
        return max(0, earliest - self.size + 1) // ALIGNED * ALIGNED

    def masks(self, full: Tensor | None, sliding: Tensor | None) -> Masks:
        """Return both masks in the form in which the model takes them."""
        return {FULL: full, SLIDING: sliding} if self.mapped else sliding

    def hide(self, mask: Tensor, parents: Tensor, m: int, cached: int) -> Tensor:
        """Return `mask` [1, 1, m, n] of a tree over the newest n tokens, also by their windows."""
        asks = node_positions(parents, m, cached)
        keys = node_positions(parents, cached + m, 0)[-mask.shape[-1] :]
        beyond = keys[None] <= asks[:, None] - self.size
        return mask.masked_fill(beyond.to(mask.device), torch.finfo(mask.dtype).min)


def window_of(config: PreTrainedConfig) -> int | None:
    """Return the newest keys that layers of `config` with a window see; None: all see all."""
    size, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    return size if size and (not kinds or SLIDING in kinds) else None


def windows_of(model: PreTrainedModel) -> Windows | None:
    """Return the windows of `model` by its configuration; None: every layer sees all keys."""
    config = model.config.get_text_config()
    size, kinds = window_of(config), getattr(config, "layer_types", None)
    if size is None:
        return None
    if not kinds:
        return Windows(size, dict.fromkeys(range(config.num_hidden_layers), True), mapped=False)
    return Windows(size, _by_number(model, kinds), mapped=True)


def _by_number(model: nn.Module, kinds: list[str]) -> dict[int, bool]:
    """Return, by a layer's number in the cache, if it has a window; {}: no list has len(kinds)."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == len(kinds)]
    windowed: dict[int, bool] = {}
    for layer, kind in zip(lists[0] if lists else (), kinds, strict=False):
        if (number := number_of(layer)) is not None:
            windowed[number] = kind == SLIDING
    return windowed


@contextmanager
def narrow_windows(model: PreTrainedModel) -> Iterator[bool]:
    """Narrow the windows in a model's config, not its layers, in a block; yield if it has any."""
    config = model.config.get_text_config()
    if windows_of(model) is None:
        yield False
        return
    size = config.sliding_window
    config.sliding_window = min(size, TRIED)
    try:
        yield True
    finally:
        config.sliding_window = size
