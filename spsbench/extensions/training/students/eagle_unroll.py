"""Training of EAGLE-like heads on their own features, unrolled over the depth of a draft.

Pass d reads what pass d - 1 made, over a cache of keys and values that grows by a pass.

Sources: the training-time test of EAGLE-3 (arXiv 2503.01840, section 3.2) and the harmonised
context of HASS (arXiv 2408.15766, section 3.2).
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from spsbench.extensions.training.losses import feature
from spsbench.extensions.training.students.head_parts import HeadStudent
from spsbench.extensions.training.students.student import (
    Batch,
    Prediction,
    TeacherOutput,
    select_continuation,
)
from spsbench.heads.network import HeadNetwork


class UnrollCache:
    """A cache of keys and values that keeps gradients."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Tensor, Tensor]] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int
    ) -> tuple[Tensor, Tensor]:
        """Append [1, heads, m, width]; return all keys and values of the layer."""
        if layer_idx in self._held:
            keys, values = self._held[layer_idx]
            key_states = torch.cat([keys, key_states], 2)
            value_states = torch.cat([values, value_states], 2)
        self._held[layer_idx] = key_states, value_states
        return key_states, value_states

    def keep(self, length: int, rows: object = ()) -> None:
        """Do nothing, since nothing is rolled back in training."""


def unroll_mask(texts: int, rows: int, depth: int, device: torch.device) -> Tensor:
    """Return the mask of pass `depth`, [m, (depth + 1) * m] with m = texts * rows.

    Row t of a text reads a draft of `depth` tokens after row t - depth. The row attends to rows of
    pass 0 up to t - depth, and in each later pass i to row t - depth + i.
    """
    place = torch.arange(rows, device=device).repeat(texts)
    text = torch.arange(texts, device=device).repeat_interleave(rows)
    same = text[:, None] == text
    apart = place[:, None] - place  # [m, m] distance from a key to the query
    blocks = [same & (apart >= depth)]
    blocks += [same & (apart == depth - i) for i in range(1, depth + 1)]
    return torch.cat(blocks, 1)


class Unrolled(HeadStudent):
    """A `HeadNetwork` over texts: row t of pass d predicts token t + 2, d tokens into a draft."""

    network: HeadNetwork
    regresses = 0.0  # weight of the feature regression

    @property
    def passes(self) -> int:
        return self.depth

    def reads(self, layers: int) -> Sequence[int]:
        """Return the layers of the features, and the last layer."""
        return sorted({*self.network.layers, layers})

    def guesses(self, batch: Batch, lesson: TeacherOutput, depth: int) -> Iterator[Prediction]:
        texts, length = batch.ids.shape
        rows, dtype = length - 1, next(self.network.parameters()).dtype
        hidden = [
            lesson.hidden[layer][:, :-1].flatten(0, 1).to(dtype) for layer in self.network.layers
        ]
        features = self.network.fuse(hidden)
        embedded = self.network.embed(batch.ids[:, 1:].flatten(), self.target.embed).to(dtype)
        device = features.device
        place = torch.arange(rows, device=device)
        places = self.network.rotary(place.repeat(texts), dtype)
        cache, last = UnrollCache(), lesson.hidden[-1]
        for d in range(depth):
            sees = unroll_mask(texts, rows, d, device)
            outputs = self.network.step(features, embedded, places, cache, sees)
            # row t predicts the token after row t + 1; a draft of d tokens has d rows before t
            ahead = (torch.arange(texts, device=device)[:, None] * length + place[d:] + 1).flatten()
            at, target_rows = select_continuation(batch, ahead)
            mine = outputs.view(texts, rows, -1)[:, d:].flatten(0, 1)[at]
            extra = None
            if self.regresses:
                true = last.flatten(0, 1)[target_rows].to(dtype)
                extra = self.regresses * feature(mine, true)
            yield Prediction(target_rows, self.network.scores(mine, self.target_head), extra)
            features = moved(outputs, texts)


def moved(features: Tensor, texts: int) -> Tensor:
    """Return [m, H] shifted by a row within each text; the first row is zeros."""
    by_text = features.view(texts, -1, features.shape[-1])
    return nn.functional.pad(by_text[:, :-1], (0, 0, 1, 0)).flatten(0, 1)
