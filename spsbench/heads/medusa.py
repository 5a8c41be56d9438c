"""Medusa: heads that each predict one token further (Cai et al. 2024, arXiv 2401.10774).

Head i reads the last hidden state of the newest token that has one, token j, and predicts token
j + 2 + i: residual blocks x + SiLU(W x + b), then a vocabulary projection of its own.

Distributions are marginals: that of a depth ignores the tokens drafted before it. Tokens are drawn
from them all the same, so exact rules apply where Medusa's own accepts what is typical.

Configs of published heads say 2 heads where the file has 5: heads and their blocks are counted in
the file. Sources: FasterDecoding/Medusa `medusa_model.py`, vLLM `medusa.py`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from spsbench.checkpoints.weights import TensorHeader
from spsbench.errors import DataError
from spsbench.heads.files import Files, read_size
from spsbench.heads.network import Marginal, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaShape:
    """The shape of Medusa heads."""

    width: int  # H
    vocab: int  # the target's, as the head knows it
    draft_vocab: int
    count: int  # heads
    depth: int = 1  # blocks of a head
    bias: bool = True


def shape(files: Files, headers: Mapping[str, TensorHeader], layers: int | None) -> MedusaShape:
    """Return the shape of the heads in the file; DataError: a gap, or the config has more heads."""
    config, where = files.config, files.where
    first = re.compile(r"heads\.(\d++)\.blocks\.0\.weight")
    numbers = {int(m[1]) for name in headers if (m := first.fullmatch(name))}
    if numbers != set(range(len(numbers))):
        raise DataError(
            f"heads {', '.join(map(str, sorted(numbers)))} ({files.folder}): expected them from 0, "
            "without a gap. Fetch it again"
        )
    key = "num_heads" if writer(files) == "vLLM" else "medusa_num_heads"
    read_size(config, key, where, len(numbers), most=len(numbers))  # a file may have more
    rows = headers["heads.0.lm_head.weight"].shape[0]
    if (cut := read_size(config, "truncated_vocab_size", where, rows)) != rows:
        raise DataError(
            f"truncated_vocab_size is {cut} ({where}): expected {rows}, the rows of its heads. "
            "Fetch the head again"
        )
    return MedusaShape(
        width=read_size(config, "hidden_size", where, headers["heads.0.blocks.0.weight"].shape[0]),
        vocab=read_size(config, "vocab_size", where, rows),
        draft_vocab=rows,
        count=len(numbers),
        depth=next(j for j in count() if f"heads.0.blocks.{j}.weight" not in headers),
        bias="heads.0.blocks.0.bias" in headers,
    )


def writer(files: Files) -> str:
    """Return whose names these are: vLLM or Medusa."""
    return "vLLM" if "blocks.0.layers.0.weight" in files.headers else "Medusa"


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

    maps = ("token_map",)

    def __init__(self, shape: MedusaShape, layers: int) -> None:
        super().__init__(shape, layers)
        self.deepest = shape.count
        self.heads = nn.ModuleList(MedusaHead(shape) for _ in range(shape.count))

    def look(self, newest: Tensor, token: Tensor, place: int, count: int, target: Target) -> Any:
        heads = self.heads[:count]

        def logits(x: Tensor) -> Tensor:
            return torch.stack([head(x) for head in heads], 1)

        return target.rows(("look", count), logits, newest[None])[0]


network = MedusaNetwork
