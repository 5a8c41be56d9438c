"""Medusa: heads that each predict one token further (Cai et al. 2024, arXiv 2401.10774).

Head i reads the last hidden state of the newest token that has one, token j, and predicts token
j + 2 + i: residual blocks x + SiLU(W x + b), then a vocabulary projection of its own.

The laws are marginals: that of a depth does not depend on the tokens drafted before it. Tokens are
drawn from them all the same, so exact rules apply where Medusa's own accepts what is typical.
"""

from typing import Any

import torch
from torch import Tensor, nn

from spsbench.methods.drafters.headed import HeadDrafter
from spsbench.methods.heads.parallel import Around, Marginal, ParallelFrontier
from spsbench.models.heads.description import MedusaShape


class MedusaHead(nn.Module):
    """Residual blocks [H, H], then `lm_head` [Vd, H]; each block has weights of its own."""

    def __init__(self, shape: MedusaShape) -> None:
        super().__init__()
        wide = shape.width
        blocks = [nn.Linear(wide, wide, bias=shape.bias) for _ in range(shape.depth)]
        self.blocks, self.act = nn.ModuleList(blocks), nn.SiLU()
        self.lm_head = nn.Linear(wide, shape.draft_vocab, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, H] to [n, Vd] logits."""
        for block in self.blocks:
            x = x + self.act(block(x))
        logits: Tensor = self.lm_head(x)
        return logits


class MedusaNetwork(Marginal):
    """`count` heads over one hidden state [H]."""

    def __init__(self, shape: MedusaShape, layers: int) -> None:
        super().__init__(shape, layers)
        self.deepest = shape.count
        self.heads = nn.ModuleList(MedusaHead(shape) for _ in range(shape.count))

    def look(self, newest: Tensor, token: Tensor, place: int, count: int, by: Around) -> Any:
        heads = self.heads[:count]

        def logits(x: Tensor) -> Tensor:
            return torch.stack([head(x) for head in heads], 1)

        return by.rows(("look", count), logits, newest[None])[0]


class Medusa(HeadDrafter):
    """A chain or tree drafter over Medusa heads."""

    network = MedusaNetwork
    frontier = ParallelFrontier
