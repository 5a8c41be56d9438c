"""Keys and values that grow by a pass, and what its rows may see, as while a draft grows.

Source: the training-time test of EAGLE-3 (arXiv 2503.01840, section 3.2) and the harmonised
context of HASS (arXiv 2408.15766, section 3.2): pass d is fed what pass d - 1 made.
"""

import torch
from torch import Tensor


class Growing:
    """A `loop.site.Cache` that keeps gradients."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Tensor, Tensor]] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int
    ) -> tuple[Tensor, Tensor]:
        """Append [1, heads, m, width]; everything of the layer."""
        if layer_idx in self._held:
            keys, values = self._held[layer_idx]
            key_states = torch.cat([keys, key_states], 2)
            value_states = torch.cat([values, value_states], 2)
        self._held[layer_idx] = key_states, value_states
        return key_states, value_states

    def copy(self) -> "Growing":
        """Another one over the same keys and values."""
        made = Growing()
        made.take(self)
        return made

    def take(self, other: "Growing") -> None:
        """Hold what another one does."""
        self._held = dict(other._held)

    def keep(self, length: int, rows: object = ()) -> None:
        """Nothing is rolled back while a text is read."""


def seen(texts: int, rows: int, depth: int, device: torch.device) -> Tensor:
    """[m, (depth + 1) * m] what rows of pass `depth` see, where m = texts * rows.

    Row t of a text was fed a draft of `depth` tokens after row t - depth. So it sees rows of pass 0
    up to that one, and of each pass i after it the one row t - depth + i.
    """
    place = torch.arange(rows, device=device).repeat(texts)
    text = torch.arange(texts, device=device).repeat_interleave(rows)
    same = text[:, None] == text
    apart = place[:, None] - place  # [m, m] how far behind a key is
    blocks = [same & (apart >= depth)]
    blocks += [same & (apart == depth - i) for i in range(1, depth + 1)]
    return torch.cat(blocks, 1)
