"""The network of DFlash (arXiv 2602.06036): a block of masks, filled in one pass.

The target's features, fused by `fc` and normed, are keys and values in every layer; they are
written once, as the text grows. The block is the pending token and masks after it. Its rows see the
features of the whole text and each other, those that come later, too.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spsbench.methods.heads.layers import Layer, Rotary
from spsbench.methods.heads.parallel import Around, Marginal
from spsbench.models.heads.description import BlockShape


class DFlashNetwork(Marginal):
    """`fc` [H, n * Ht], layers over [text; block], a norm and the target's head or its own."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        layer = shape.layer
        self.shape, self.layers = shape, shape.features
        self.deepest = shape.block - (0 if shape.from_first else 1)
        read = len(shape.features) * shape.target_width
        self.fc = nn.Linear(read, layer.width, bias=False)
        self.hidden_norm = nn.RMSNorm(layer.width, eps=layer.eps)
        self.stack = nn.ModuleList(Layer(layer, i) for i in range(shape.depth))
        self.norm = nn.RMSNorm(layer.width, eps=layer.eps)
        self.rotary = Rotary(layer)
        if shape.own_head:
            self.lm_head = nn.Linear(layer.width, shape.draft_vocab, bias=False)
        if shape.own_embedding:
            self.embed_tokens = nn.Embedding(shape.vocab, layer.width)

    def read(self, hidden: Sequence[Tensor], tokens: Tensor, past: int, by: Around) -> Tensor:
        """[m, H] fused features become keys and values of every layer, not passed through any."""
        fused = self.hidden_norm(self.fc(torch.cat(list(hidden), -1)))
        places = torch.arange(past, past + len(fused), device=fused.device)
        turns = self.rotary(places, fused.dtype)
        for layer in self.stack:
            attention: Any = layer.self_attn
            attention.note(fused, turns, by.cache)
        newest: Tensor = fused[-1]
        return newest

    def look(self, newest: Tensor, token: Tensor, place: int, count: int, by: Around) -> Any:
        """[count, Vd] logits of the first rows that draft."""
        return self.logits(self.rows(token, place, by)[-self.deepest :][:count], by)

    def rows(self, token: Tensor, place: int, by: Around) -> Tensor:
        """[block, H] normed rows, of which the last `deepest` draft; always the whole block."""
        masks = token.new_full((self.shape.block,), self.shape.mask)
        x = by.embed(torch.cat([token[None], masks[1:]]))
        turns = self.rotary(torch.arange(place, place + len(x), device=token.device), x.dtype)
        for layer, window in zip(self.stack, self.shape.windows, strict=True):
            x = layer(x, turns, by.cache, self._sees(place, window, token.device))
        made: Tensor = self.norm(x)
        return made

    def logits(self, rows: Tensor, by: Around) -> Tensor:
        """[n, H] -> [n, Vd] by its own head, else by the target's rows of its vocabulary."""
        return self.ranked(rows, by.head)

    def _sees(self, past: int, window: int, device: torch.device) -> Tensor | None:
        """[block, past + block] what each row sees in a layer with a window; None: everything."""
        if not window:
            return None
        size = self.shape.block
        sees = torch.ones(size, past + size, dtype=torch.bool, device=device)
        sees[:, : max(0, past - window)] = False  # counted from the pending token, for every row
        return sees if self.shape.looks_ahead else sees.tril(past)
