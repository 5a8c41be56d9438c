"""The law of a path that was chosen among several: what `gbv` judges it by.

Paths are drawn independently, and that with the greatest q / p at each place is chosen, of equal
ones that with the greatest id. Order the paths token by token in this way, and let L be p's mass of
the smaller tokens. A path of branching k_1, k_2, ... is below (x_1, x_2, ...) with the chance

    (L(x_1) + p(x_1) (L(x_2) + p(x_2) (...)^k_3)^k_2)^k_1

so the chance that the chosen path begins with a prefix is the difference of two of these: with all
that may follow counted, and with none of it. Differences of powers are written as a product, since
a long prefix has little mass. K chains are the branching (K, 1, 1, ...) of arXiv 2602.16961.
"""

from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

Number = Any
"""A float, or a tensor of them."""


class ChosenPath:
    """A chosen path on the host, and its laws where they are asked for: each sorts V ratios."""

    def __init__(
        self,
        q: Sequence[Tensor],
        p: Sequence[Tensor],
        tokens: Sequence[int],
        branching: Sequence[int],
    ) -> None:
        """Both models' laws [V] along it, [D + 1] of `q` and [D] of `p`; [D] the others."""
        self.q, self.p, self.tokens, self.branching = q, p, tokens, branching
        slots = list(zip(q, p, tokens, strict=False))
        self.own = [float(q[x]) for q, _, x in slots]
        self.width = [float(p[x]) for _, p, x in slots]
        self.chosen = max(branching) > 1  # else there was nothing to choose from
        self.low = [mass_below(*slot) for slot in slots] if self.chosen else []  # L of its tokens

    def ratios(self) -> list[float]:
        """[D] q / p of its tokens, p being the law of the chosen path."""
        laws = self.width
        if self.chosen:
            both = enumerate(zip(self.low, self.width, strict=True))
            laws = [p * self._likelier(slot, low + p, low) for slot, (low, p) in both]
        return [q / p if p else 0.0 for q, p in zip(self.own, laws, strict=True)]

    def laws(self, slot: int) -> tuple[Tensor, Tensor | None]:
        """Both laws [V] of a slot, no p after the last."""
        q = self.q[slot]
        if slot == len(self.p):
            return q, None
        p = self.p[slot]
        if not self.chosen:
            return q, p
        smaller = masses_below(q[None], p[None])[0]
        return q, (p * self._likelier(slot, smaller + p, smaller)).nan_to_num_(0.0)

    def _likelier(self, slot: int, high: Number, less: Number) -> Number:
        before = self.low[:slot], self.width[:slot]
        return likelier(high, less, *before, self.branching)


def chosen_laws(q: Tensor, p: Tensor, tokens: Tensor, branching: Sequence[int]) -> Tensor:
    """[D, V] the law of each token of the chosen path, given those before it.

    Args:
        q, p: [D, V] both models' laws along it.
        tokens: [D] it.
        branching: [D] of the tree at each depth.
    """
    smaller = masses_below(q, p)
    at = tokens[:, None]
    low, width = (x.gather(1, at)[:, 0].unbind() for x in (smaller, p))  # [D] L and p of its tokens
    found = [
        p[i] * likelier(smaller[i] + p[i], smaller[i], low[:i], width[:i], branching)
        for i in range(len(branching))
    ]
    return torch.stack(found).nan_to_num(0.0)


def likelier(
    high: Number,
    less: Number,
    low: Sequence[Number],
    width: Sequence[Number],
    branching: Sequence[int],
) -> Number:
    """How many times likelier a token is after the first i of the chosen path than p says.

    Args:
        high, less: L + p and L of the token; tensors are changed.
        low, width: [i] L and p of the path before it.
        branching: [D] of the tree at each depth.
    """
    found: Number = 1.0
    inside = quotients(high, less, low, width, branching)
    before = quotients(1.0, 0.0, low, width, [*branching[: len(low)], 1])
    for token, text in zip(inside, before, strict=True):
        found = found * (token / text)
    return found


def quotients(
    a: Number,
    b: Number,
    low: Sequence[Number],
    width: Sequence[Number],
    branching: Sequence[int],
) -> list[Number]:
    """[i + 1] of each place (a^k - b^k) / (a - b), from the inmost place out.

    From the inmost out, a and b are L + p times the power below; places without a choice only shift
    and scale. Tensors `a` and `b` are changed. Each quotient is a sum: nothing cancels.
    """
    found: list[Number] = []
    shift: Number = 0.0
    slope: Number = 1.0
    for place in range(len(low), -1, -1):
        if place < len(low):
            shift, slope = low[place] + width[place] * shift, width[place] * slope
        k = branching[place]
        if k > 1:
            if place < len(low):
                a *= slope
                a += shift
                b *= slope
                b += shift
            found.append(quotient(a, b, k))
            if place:
                a, b, shift, slope = a**k, b**k, 0.0, 1.0
        else:
            found.append(1.0)
    return found


def quotient(a: Number, b: Number, k: int) -> Number:
    """(a^k - b^k) / (a - b) of k >= 2 as a sum."""
    total, power = a + b, b * b
    for _ in range(k - 2):
        total *= a
        total += power
        power *= b
    return total


def mass_below(q: Tensor, p: Tensor, token: int) -> float:
    """P's mass of the tokens before one, as `masses_below` has it for all; `q`, `p` [V]."""
    ratio = (q / p).nan_to_num_(0.0)
    before = ratio < ratio[token]
    before[:token] |= ratio[:token] == ratio[token]
    return float(torch.mul(p, before, out=ratio).sum())


def masses_below(q: Tensor, p: Tensor) -> Tensor:
    """[D, V] p's mass of the tokens before each one, in the order of q / p and of ids."""
    order = by_ratio((q / p).nan_to_num_(0.0))
    running = p.gather(1, order).cumsum(-1)  # a processor adds these in double
    found = torch.zeros_like(p)
    return found.scatter_(1, order[:, 1:], running[:, :-1])


def by_ratio(ratio: Tensor) -> Tensor:
    """[D, V] the ids in the order of their ratios, none of them negative, then of ids."""
    if ratio.device.type != "cpu" or ratio.dtype != torch.float32:
        return ratio.sort(dim=-1, stable=True).indices
    # Bits of numbers that are not negative are in their order: one whole number holds both keys,
    # and numpy sorts those ten times faster than torch sorts anything.
    keys = (ratio.view(torch.int32).long() << 32) | torch.arange(ratio.shape[-1])
    return torch.from_numpy(numpy.sort(keys.numpy(), axis=-1)) & 0xFFFFFFFF
