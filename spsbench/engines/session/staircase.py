"""The mask of a small pass as a view: at a step nothing is computed, or the corner of a tree."""

import torch
from torch import Tensor

from spsbench.loop.trees import block_visible


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
