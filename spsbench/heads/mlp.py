"""MLP speculators: a small recurrent state over the last hidden state (arXiv 2404.19124).

The state starts as the target's last hidden state and takes in one token a depth: the pending token
first, then the drafted ones. So its probs depend on the whole draft, unlike Medusa's.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm
from transformers.activations import GELUActivation

from spsbench.checkpoints.weights import TensorHeader
from spsbench.heads.files import MANY, Files, read_size
from spsbench.heads.network import ParallelNetwork, Target

EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpShape:
    """The shape of an MLP speculator."""

    width: int  # H
    inner: int  # D
    vocab: int
    count: int  # stages
    tied: bool = False
    scaled: bool = False  # the hidden state is normed first


def shape(files: Files, headers: Mapping[str, TensorHeader], layers: int | None) -> MlpShape:
    """Return the shape by the config, `scaled` by the user's flag if set; DataError: a bad size."""
    config, where = files.config, files.where
    width, scaled = read_size(config, "emb_dim", where), files.overrides.get("scaled")
    return MlpShape(
        width=width,
        inner=width if not config.get("inner_dim") else read_size(config, "inner_dim", where),
        vocab=read_size(config, "vocab_size", where),
        count=read_size(config, "n_predict", where, most=MANY),
        tied=bool(config.get("tie_weights", False)),
        scaled=scaled == "yes" if scaled else bool(config.get("scale_input", False)),
    )


class BiasedRMSNorm(nn.RMSNorm):
    """An RMS norm with a bias."""

    def __init__(self, width: int, eps: float = EPS) -> None:
        super().__init__(width, eps=eps)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.bias


class MlpNetwork(ParallelNetwork):
    """`n_predict` stages of `emb` [V, D], `proj` [D, H or D], `ln` [D] and `head` [V, D].

    With tied weights the stages share them, except for the first `proj`, whose shape differs.
    """

    def __init__(self, shape: MlpShape, layers: int) -> None:
        super().__init__(shape, layers)
        self.deepest = shape.count
        stages, inner = (1 if shape.tied else shape.count), shape.inner
        firsts = min(2, shape.count) if shape.tied else shape.count
        self.emb = nn.ModuleList(nn.Embedding(shape.vocab, inner) for _ in range(stages))
        self.proj = nn.ModuleList(
            nn.Linear(inner if i else shape.width, inner, bias=False) for i in range(firsts)
        )
        self.head = nn.ModuleList(nn.Linear(inner, shape.vocab, bias=False) for _ in range(stages))
        self.ln = nn.ModuleList(BiasedRMSNorm(inner) for _ in range(stages))
        self.act = GELUActivation()
        self.rolls = shape.tied  # stages after the first are one function
        if shape.tied:  # a file may have every name, or the first ones alone
            self.copies = (r"^(emb|head|ln)\.\d+", r"\1.0"), (r"^proj\.[1-9]\d*", "proj.1")
        old = 0.5 ** (0.5 / shape.count)  # the weight of the state beside that of a token
        self._weight = math.sqrt((1 - old**2) * (inner / 2)) / old

    def look(self, newest: Tensor, token: Tensor, place: int, count: int, target: Target) -> Any:
        return self.before(newest[None])

    def before(self, hidden: Tensor) -> Tensor:
        """Return [n, H] states before a first token: the target's `hidden`, normed if `scaled`."""
        if not self.shape.scaled:
            return hidden
        return rms_norm(hidden, hidden.shape[-1:], eps=EPS) / math.sqrt(2)

    def start(self, seen: Any, token: Tensor, target: Target) -> Tensor:
        return self.step(seen, -1, seen, token[None], target)[0]

    def scores(self, seen: Any, depth: int, states: Tensor, target: Target) -> Tensor:
        return states[:, -self.shape.vocab :]

    def step(self, seen: Any, depth: int, states: Tensor, tokens: Tensor, target: Target) -> Tensor:
        stage = min(depth + 1, 1) if self.rolls else depth + 1
        return target.rows(("step", stage), partial(self._step, stage), tokens, states)

    def _step(self, stage: int, tokens: Tensor, states: Tensor) -> Tensor:
        x = self.stage(stage, states[:, : self.proj[min(stage, 1)].in_features], tokens)
        return torch.cat([x, nth(self.head, stage)(x)], -1)

    def stage(self, i: int, x: Tensor, tokens: Tensor) -> Tensor:
        """Run stage `i` on [n, .] states and the [n] tokens after them; return [n, D]."""
        x = nth(self.proj, i)(x) + self._weight * nth(self.emb, i)(tokens)
        state: Tensor = self.act(nth(self.ln, i)(x))
        return state


def nth(stages: nn.ModuleList, i: int) -> nn.Module:
    """Return stage `i`, or the last one, which all later stages share."""
    return stages[min(i, len(stages) - 1)]


network = MlpNetwork
