"""The mask of a small pass as a view: at a step nothing is computed, or the corner of a tree."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from spsbench.engines.session.cache import number_of
from spsbench.loop.trees import block_visible, places


class Staircase:
    """Additive masks [1, 1, m, past + m]: row i sees the past and the new tokens up to i.

    All masks of one m are the right ends of one matrix: zeros, then the causal triangle. With a
    window the left of it is hidden too, by a triangle as well.

    Args:
        dtype: of the model, and its device.
        window: keys that a row sees, its own among them; None = all.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device, window: int | None = None) -> None:
        self._dtype, self._device, self._window = dtype, device, window
        self._widest: dict[int, Tensor] = {}
        self._trees: dict[int, Tensor] = {}  # the same, with the corner of the last tree
        self._corners: dict[int, int] = {}  # how wide that is

    def mask(self, past: int, m: int) -> Tensor:
        """The mask of `m` tokens after `past`."""
        return self._end(self._widest, past, m)

    def branched(self, past: int, m: int, parents: Tensor) -> Tensor:
        """The mask of a pass whose last N tokens, cached ones included, are nodes of a tree.

        The next one of the same m overwrites it.
        """
        mask, sees = self._end(self._trees, past, m), block_visible(parents, m)
        wide = max(sees.shape[1], self._corners.get(m, m))  # what the last tree wrote is cleared
        self._corners[m] = sees.shape[1]
        mask[:, :, :, past + m - min(wide, past + m) :] = 0
        mask[:, :, :, past + m - sees.shape[1] :].masked_fill_(
            ~sees.to(self._device), torch.finfo(self._dtype).min
        )
        return mask

    def _end(self, widest: dict[int, Tensor], past: int, m: int) -> Tensor:
        stairs = widest.get(m)
        if stairs is None or stairs.shape[-1] < past + m:
            stairs = widest[m] = self._make(2 * past + m, m)
        return stairs[:, :, :, stairs.shape[-1] - past - m :]

    def _make(self, width: int, m: int) -> Tensor:
        lowest = torch.finfo(self._dtype).min
        hidden = torch.full((m, width), lowest, dtype=self._dtype, device=self._device)
        stairs = hidden.triu(width - m + 1)
        if self._window is not None:
            stairs += hidden.tril(width - m - self._window)
        return stairs[None, None]


# Attention that sees a window of the newest tokens: which layers of a model, and their masks.

FULL, SLIDING = "full_attention", "sliding_attention"  # transformers' words
ALIGNED = 16  # keys: where a view may begin, such that sums are added up in one order
TRIED = 4  # the window of a trial, which a few tokens cross

Masks = Tensor | Mapping[str, Tensor | None] | None


@dataclass(frozen=True)
class Windows:
    """The windows of a model.

    Attributes:
        size: keys that are seen through it.
        sliding: by the number of a layer in the cache, whether it has one.
        mapped: the model takes a mask for each kind of layer, by its name; else one for all.
    """

    size: int
    sliding: Mapping[int, bool]
    mapped: bool

    def first(self, earliest: int) -> int:
        """The first key that tokens from position `earliest` on are given, or one before it."""
        return max(0, earliest - self.size + 1) // ALIGNED * ALIGNED

    def masks(self, full: Tensor | None, sliding: Tensor | None) -> Masks:
        """Both masks in the form in which the model takes them."""
        return {FULL: full, SLIDING: sliding} if self.mapped else sliding

    def hide(self, mask: Tensor, parents: Tensor, m: int, cached: int) -> Tensor:
        """A copy of `mask` [1, 1, m, n] of a tree, over the newest n tokens, with windows."""
        asks, keys = places(parents, m, cached), places(parents, cached + m, 0)[-mask.shape[-1] :]
        beyond = keys[None] <= asks[:, None] - self.size
        return mask.masked_fill(beyond.to(mask.device), torch.finfo(mask.dtype).min)


def windows_of(model: PreTrainedModel) -> Windows | None:
    """The windows of `model` as its configuration tells them; None = every layer sees all."""
    config = model.config.get_text_config()
    size, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if not size or (kinds and SLIDING not in kinds):
        return None
    if not kinds:
        return Windows(size, dict.fromkeys(range(config.num_hidden_layers), True), mapped=False)
    return Windows(size, _by_number(model, kinds), mapped=True)


def _by_number(model: nn.Module, kinds: list[str]) -> dict[int, bool]:
    """Whether a layer slides, by its number in the cache: a view of a model has fewer of those."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == len(kinds)]
    found: dict[int, bool] = {}
    for layer, kind in zip(lists[0] if lists else (), kinds, strict=False):
        if (number := number_of(layer)) is not None:
            found[number] = kind == SLIDING
    return found


@contextmanager
def narrowed(model: PreTrainedModel) -> Iterator[bool]:
    """Within it the windows of `model` are so narrow that a trial crosses them; whether it has any.

    Only masks are asked: no text is made in it.
    """
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
