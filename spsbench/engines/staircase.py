"""The causal mask of a small pass as a view: nothing is computed for it at a step."""

import torch
from torch import Tensor


class Staircase:
    """Additive masks [1, 1, m, past + m]: row i sees the past and the new tokens up to i.

    All masks of one m are the right ends of one matrix: zeros, then the causal triangle.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._widest: dict[int, Tensor] = {}

    def mask(self, past: int, m: int) -> Tensor:
        """The mask of `m` tokens after `past`."""
        stairs = self._widest.get(m)
        if stairs is None or stairs.shape[-1] < past + m:
            stairs = self._widest[m] = self._make(2 * past + m, m)
        return stairs[:, :, :, stairs.shape[-1] - past - m :]

    def _make(self, width: int, m: int) -> Tensor:
        lowest = torch.finfo(self._dtype).min
        hidden = torch.full((m, width), lowest, dtype=self._dtype, device=self._device)
        return hidden.triu(width - m + 1)[None, None]
