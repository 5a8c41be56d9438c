"""A drafter as another package would bring it: a layer of its own over the target's hidden states.

Its folder has three matrices and a config.json, no tokenizer. One attention layer reads the hidden
state of a token and the embedding of the next one, keeps its keys and values in a cache of its own,
and its output goes through the target's head. While it drafts, its output stands for the hidden
state that the target has not computed yet (as in EAGLE, Li et al. 2024, arXiv 2401.15077).
"""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from spsbench.loop.drafter_context import OwnWeights, TargetParts
from spsbench.loop.sampling import sample
from spsbench.loop.types import (
    Context,
    Draft,
    Drafter,
    DrafterContext,
    Drawn,
    GoOn,
    Noise,
    Plan,
    Purpose,
    Scores,
    Weights,
)


class Features(Drafter):
    """Drafts from what the target computed; by sampling, or its likeliest tokens."""

    @classmethod
    def plan(cls, sampled: bool = True) -> Plan:
        drawn = Drawn.IID if sampled else Drawn.POINT
        return Plan(drawn, weights=Weights.OWN, target=True)

    @classmethod
    def open(cls, context: DrafterContext, sampled: bool = True) -> Self:
        return cls(context.own(), context.target(), context.cache(), sampled)

    def __init__(self, own: OwnWeights, target: TargetParts, cache: Any, sampled: bool) -> None:
        self.drawn = Drawn.IID if sampled else Drawn.POINT
        self.layer = int(own.config["layer"])
        self.layers = (self.layer,)
        self._target, self._cache = target, cache
        names = ("mix.weight", "qkv.weight", "out.weight")
        self._mix, self._qkv, self._out = (own.tensors[name].to(target.dtype) for name in names)
        self._length = 0  # of what is not drafted, in the cache

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        self._cache.keep(0)
        self._length = 0
        self._newest = torch.zeros(self._out.shape[0], dtype=self._target.dtype)
        self._read(prefill.hidden[self.layer], prompt[1:])

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        self._cache.keep(self._length)
        if context.last is not None:
            new = int((context.last.verdict.path >= 0).sum()) + 1
            self._read(context.last.scores.hidden[self.layer][:new], context.tokens[-new:])
        u = noise.uniform(Purpose.DRAFT, k) if self.drawn is Drawn.IID else None
        tokens: list[Tensor] = []
        laws: list[Tensor] = []
        state = self._newest
        for i in range(k):
            logits = self._target.head(state[None])
            law = context.warp(logits)[0]
            if not go_on(law):
                break
            tokens.append(logits[0].argmax() if u is None else sample(law, u[i]))
            laws.append(law)
            state = self._forward(state[None], tokens[-1][None])[-1]
        if not tokens:
            return Draft(torch.empty(0, dtype=torch.int64), None)
        return Draft(torch.stack(tokens), None if u is None else torch.stack(laws))

    def _read(self, hidden: Tensor, tokens: Sequence[int]) -> None:
        """Take in tokens of the text, with the target's states before them."""
        if len(tokens):
            ids = torch.tensor(list(tokens), dtype=torch.int64)
            self._newest = self._forward(hidden, ids)[-1]
            self._length += len(tokens)

    def _forward(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """[m, D] states of tokens, [m] the tokens after them -> [m, D] states of those."""
        mixed = torch.cat([hidden, self._target.embed(tokens)], -1) @ self._mix.T
        q, k, v = (mixed @ self._qkv.T)[None, None].chunk(3, -1)
        keys, values = self._cache.update(k, v, 0)
        m, n = len(tokens), keys.shape[2]
        seen = torch.ones(m, n, dtype=torch.bool).tril(n - m)
        kept = torch.nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
        made: Tensor = mixed + kept[0, 0] @ self._out.T
        return made
