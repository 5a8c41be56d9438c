"""Blockwise parallel decoding, the first speculative method (Stern et al. 2018, arXiv 1811.03115).

Head i is a feed-forward layer with a residual connection over the last hidden state; all share one
vocabulary projection, the target's own as a rule (section 4). The paper's p_1 is the target itself.
The paper accepts the target's likeliest token; by `match` or `sps` any temperature is exact.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spsbench.checkpoints.weights import TensorHeader
from spsbench.heads.files import MANY, Files, read_size
from spsbench.heads.network import Marginal, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockwiseShape:
    """The shape of proposal heads of blockwise parallel decoding."""

    width: int  # H
    inner: int  # F
    vocab: int
    count: int
    own_head: bool = False


def shape(files: Files, headers: Mapping[str, TensorHeader], layers: int | None) -> BlockwiseShape:
    """Return the shape by the config, `own_head` by the tensors; DataError: a bad size, or none."""
    config, where = files.config, files.where
    return BlockwiseShape(
        width=read_size(config, "hidden_size", where),
        inner=read_size(config, "inner_size", where),
        vocab=read_size(config, "vocab_size", where),
        count=read_size(config, "num_heads", where, most=MANY),
        own_head="lm_head.weight" in headers,
    )


class BlockwiseHead(nn.Module):
    """A feed-forward layer with a residual connection: `up` [F, H], `down` [H, F]."""

    def __init__(self, shape: BlockwiseShape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.width, shape.inner)
        self.down, self.act = nn.Linear(shape.inner, shape.width), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = x + self.down(self.act(self.up(x)))
        return output


class BlockwiseNetwork(Marginal):
    """`count` heads over one hidden state [H]."""

    def __init__(self, shape: BlockwiseShape, layers: int) -> None:
        super().__init__(shape, layers)
        self.deepest = shape.count
        self.heads = nn.ModuleList(BlockwiseHead(shape) for _ in range(shape.count))
        if shape.own_head:
            self.lm_head = nn.Linear(shape.width, shape.vocab, bias=False)

    def look(self, newest: Tensor, token: Tensor, place: int, count: int, target: Target) -> Any:
        """Return [count, Vd] logits of the first `count` heads over `newest` [H] alone."""
        heads = self.heads[:count]

        def logits(x: Tensor) -> Tensor:
            rows = torch.stack([head(x) for head in heads], 1)  # [n, count, H]
            return self.ranked(rows.flatten(0, 1), target.head).view(len(x), len(heads), -1)

        return target.rows(("look", count), logits, newest[None])[0]


network = BlockwiseNetwork
