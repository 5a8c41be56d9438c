"""MLP speculators: a small recurrent state over the last hidden state (arXiv 2404.19124).

The state starts as the target's last hidden state and takes in one token a depth: the pending token
first, then the drafted ones. So its laws depend on the whole draft, unlike Medusa's.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from spsbench.methods.drafters.headed import HeadDrafter
from spsbench.methods.heads.parallel import Around, ParallelFrontier, ParallelNetwork
from spsbench.models.heads.description import MlpShape

EPS = 1e-6


class ScaledNorm(nn.Module):
    """An RMS norm with a weight and a bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [n, D]."""
        return normed(x) * self.weight + self.bias


class MlpNetwork(ParallelNetwork):
    """`n_predict` stages of `emb` [V, D], `proj` [D, H or D], `ln` [D] and `head` [V, D].

    With tied weights the stages share them, except for the first `proj`, whose shape differs.
    """

    def __init__(self, shape: MlpShape, layers: int) -> None:
        super().__init__(shape, layers)
        self.deepest = shape.count
        own, inner = (1 if shape.tied else shape.count), shape.inner
        firsts = min(2, shape.count) if shape.tied else shape.count
        self.emb = nn.ModuleList(nn.Embedding(shape.vocab, inner) for _ in range(own))
        self.proj = nn.ModuleList(
            nn.Linear(inner if i else shape.width, inner, bias=False) for i in range(firsts)
        )
        self.head = nn.ModuleList(nn.Linear(inner, shape.vocab, bias=False) for _ in range(own))
        self.ln = nn.ModuleList(ScaledNorm(inner) for _ in range(own))
        old = 0.5 ** (0.5 / shape.count)  # the weight of the state beside that of a token
        self._weight = math.sqrt((1 - old**2) * (inner / 2)) / old

    def look(self, newest: Tensor, token: Tensor, place: int, count: int, by: Around) -> Any:
        """Return [1, H], the state that stage 0 projects."""
        return normed(newest[None]) / math.sqrt(2) if self.shape.scaled else newest[None]

    def start(self, seen: Any, token: Tensor, by: Around) -> Tensor:
        """Return [D], the state after the pending token."""
        return self.step(seen, -1, seen, token[None], by)[0]

    def scores(self, seen: Any, depth: int, states: Tensor, by: Around) -> Tensor:
        """Return [n, V] logits by the head of this stage."""
        return by.rows(("scores", depth), nth(self.head, depth), states)

    def step(self, seen: Any, depth: int, states: Tensor, tokens: Tensor, by: Around) -> Tensor:
        """Return [n, D], the states after the tokens."""
        stage = depth + 1
        return by.rows(("stage", stage), partial(self.stage, stage), states, tokens)

    def stage(self, i: int, x: Tensor, tokens: Tensor) -> Tensor:
        """Run stage `i` on [n, .] states and the [n] tokens after them; return [n, D]."""
        x = nth(self.proj, i)(x) + self._weight * nth(self.emb, i)(tokens)
        return gelu(nth(self.ln, i)(x))


def nth(stages: nn.ModuleList, i: int) -> nn.Module:
    """Return stage `i`, or the last one, which all later stages share."""
    return stages[min(i, len(stages) - 1)]


def normed(x: Tensor) -> Tensor:
    """Scale [n, D] to a mean square of 1."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)


class Mlp(HeadDrafter):
    """A chain or tree drafter over an MLP speculator."""

    network = MlpNetwork
    frontier = ParallelFrontier
