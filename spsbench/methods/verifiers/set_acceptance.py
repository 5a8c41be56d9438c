"""Verifiers that keep a token in a set of the target's: typical and top-k acceptance.

For a slot whose set of allowed tokens is T, a sampled draft gives p on T, and 1 - p(T) of q; a
deterministic draft is the output with certainty if it is in T, else a token of q is. Nothing
bounds the ratio of the output's distribution to q.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spsbench.loop.types import Draft, Guarantee, Noise, Verdict
from spsbench.methods.verifiers.walk_down import Tested, WalkDown, drawn_from, row_at
from spsbench.plugins import SHARE


class Allowing(WalkDown):
    """A verifier that keeps draft tokens while each is allowed, then draws one from q.

    In a tree it keeps the longest path of allowed nodes; ties go to the likeliest by q, then to the
    first.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY

    @abstractmethod
    def allowed(self, q: Tensor) -> Tensor:
        """Map [..., V] probs of the target to [..., V] bool: the tokens that may pass."""

    def test(self, draft: Draft, q: Tensor, noise: Noise) -> Tested:
        above = slice(-1) if draft.parents is None else draft.parents.to(q.device) + 1
        passed = self.allowed(q[above]).gather(1, draft.tokens[:, None])[:, 0]
        return (passed, drawn_from(lambda end: row_at(q, end), noise))

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        """Keep the longest path of allowed nodes, then draw a token from q after its last node."""
        if draft.parents is None:
            return super().__call__(draft, q, noise)
        passed, last = self.test(draft, q, noise)
        chances = q[draft.parents.to(q.device) + 1, draft.tokens].double().log()
        nodes = longest(draft.parents.tolist(), passed.tolist(), chances.tolist())
        path = draft.tokens.new_tensor(nodes + [-1] * (len(passed) - len(nodes)))
        token = last(nodes[-1] + 1 if nodes else 0)
        return Verdict(path, token, torch.full_like(token, -1))


def longest(parents: Sequence[int], passes: Sequence[bool], chances: Sequence[float]) -> list[int]:
    """Return the longest path that passes, from the top, [] if none; ties by sums of `chances`."""
    best: tuple[int, float, int] = (0, 0.0, -1)  # depth, log-probability, node
    reached: dict[int, tuple[int, float]] = {-1: (0, 0.0)}
    for node, parent in enumerate(parents):
        if passes[node] and parent in reached:
            depth, chance = reached[parent][0] + 1, reached[parent][1] + chances[node]
            reached[node] = depth, chance
            if (depth, chance) > best[:2]:
                best = depth, chance, node
    path: list[int] = []
    node = best[2]
    while node >= 0:
        path.insert(0, node)
        node = parents[node]
    return path


@dataclass(frozen=True)
class Typical(Allowing):
    """A verifier that keeps x while q(x) > min(epsilon, delta exp(-H(q))), then draws from q.

    Lossy, and without a bound: a token of probability `epsilon` may come every time that the draft
    proposes it. H in nats. The defaults are Medusa's; where Medusa then takes the target's
    likeliest token, this verifier draws one from q. At temperature 0 it is greedy decoding.
    """

    ranges: ClassVar = {"epsilon": SHARE, "delta": SHARE}

    epsilon: float = 0.09
    delta: float = 0.3

    def allowed(self, q: Tensor) -> Tensor:
        spread: Tensor = torch.special.entr(q).sum(-1, keepdim=True)
        least = (self.delta * (-spread).exp()).clamp(max=self.epsilon)
        return q > least


@dataclass(frozen=True)
class TopK(Allowing):
    """A verifier that keeps x among the target's `n` likeliest tokens, then draws from q.

    Lossy, and without a bound. Tokens as likely as the n-th are among them, those of no
    probability never. The rule sees probs after the warp: at temperature 0 they hold one token,
    and this is greedy decoding. To let the second best pass as the paper does, ask for a low
    temperature instead.
    """

    ranges: ClassVar = {"n": (1, 1 << 24)}

    n: int = 2

    def allowed(self, q: Tensor) -> Tensor:
        least = q.topk(min(self.n, q.shape[-1])).values[..., -1:]
        return (q >= least) & (q > 0)
