"""The network of P-EAGLE (arXiv 2602.01469): EAGLE-3, which foretells several depths in one pass.

Rows of the text are EAGLE-3's. After them come rows whose token and hidden states are not known: a
mask token, and a learned hidden state. Each sees the text and the masks before it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spsbench.methods.heads.eagle3 import Eagle3Network
from spsbench.methods.heads.parallel import Around, Marginal, Rows
from spsbench.methods.heads.reader import causal
from spsbench.models.heads.shapes import ParallelEagleShape


class ParallelEagleNetwork(Marginal):
    """`inner` is EAGLE-3's network, `mask_hidden` [1, 1, n * Ht]."""

    def __init__(self, shape: ParallelEagleShape) -> None:
        super().__init__()
        self.shape, self.deepest = shape, shape.count
        self.inner = Eagle3Network(shape.inner)
        self.layers = self.inner.layers
        read = len(self.layers) * shape.inner.target_width
        self.mask_hidden = nn.Parameter(torch.empty(1, 1, read))

    def read(self, hidden: Sequence[Tensor], tokens: Tensor, past: int, by: Around) -> Tensor:
        """As EAGLE-3; the newest row foretells the first depth."""
        features = self.inner.fuse(hidden)
        places = torch.arange(past, past + len(tokens), device=tokens.device)
        sees = causal(len(tokens), past, tokens.device)
        return self.inner.step(features, by.embed(tokens), places, by.cache, sees)[-1]

    def look(self, newest: Tensor, token: Tensor, place: int, count: int, by: Around) -> Any:
        """[count, Vd] logits of the newest row and of the masks after it."""
        rows = newest[None]
        if count > 1:
            masks = token.new_full((count - 1,), self.shape.mask)
            parts = self.mask_hidden[0].chunk(len(self.layers), -1)
            features = self.inner.fuse(parts).expand(count - 1, -1)
            places = torch.arange(place, place + count - 1, device=token.device)
            sees = causal(count - 1, place, token.device)
            made = self.inner.step(features, by.embed(masks), places, by.cache, sees)
            rows = torch.cat([rows, made])
        return self.inner.scores(rows, by.head)

    def embed(self, tokens: Tensor, embed: Rows) -> Tensor:
        """By its own table where it brings one: P-EAGLE trains it."""
        return self.inner.embed(tokens, embed)
