"""The heads of Medusa (Cai et al. 2024, arXiv 2401.10774, section 2.1.1).

Head i reads the last hidden state of the newest token that has one, token j, and foretells token
j + 2 + i: residual blocks x + SiLU(W x + b), then a vocabulary projection of its own.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from spsbench.methods.heads.parallel import Around, Marginal
from spsbench.models.heads.description import MedusaShape


class MedusaHead(nn.Module):
    """Blocks [H, H], then `lm_head` [Vd, H]; each block has weights of its own."""

    def __init__(self, shape: MedusaShape) -> None:
        super().__init__()
        wide = shape.width
        blocks = [nn.Linear(wide, wide, bias=shape.bias) for _ in range(shape.depth)]
        self.blocks = nn.ModuleList(blocks)
        self.lm_head = nn.Linear(wide, shape.draft_vocab, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[n, H] -> [n, Vd] logits."""
        for block in self.blocks:
            x = x + silu(block(x))
        logits: Tensor = self.lm_head(x)
        return logits


class MedusaNetwork(Marginal):
    """`count` heads over one hidden state [H]."""

    def __init__(self, shape: MedusaShape, layers: int) -> None:
        super().__init__()
        self.layers = (layers,)  # of the target: the last hidden state is the normed one
        self.deepest = shape.count
        self.heads = nn.ModuleList(MedusaHead(shape) for _ in range(shape.count))

    def look(self, newest: Tensor, token: Tensor, place: int, count: int, by: Around) -> Any:
        """[count, Vd] the logits of the first heads."""
        return torch.cat([self.heads[i](newest[None]) for i in range(count)])
