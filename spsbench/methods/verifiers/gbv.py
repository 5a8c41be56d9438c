"""Greedy multi-path block verification (GBV, arXiv 2602.16961).

One of several independently drawn paths is chosen by the laws alone: at each position the token
with the greatest q / p of those drawn there, ties to the greatest id. The law of the chosen path is
computed, and block verification is exact for any law that a chain was really drawn from: so the
chosen path is verified by `block`, against its own law.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy
import torch
from torch import Tensor

from spsbench.loop.sampling import row, send
from spsbench.loop.types import Draft, Drawn, Guarantee, Noise, Verdict
from spsbench.methods.verifiers.block import Block
from spsbench.methods.verifiers.spectr import refuses_unless_independent
from spsbench.methods.verifiers.tree_tables import (
    KEPT,
    Shape,
    numbers,
    shape_of,
    tables,
)

Number = Any
"""A float, or a tensor of them."""


@dataclass(frozen=True)
class Gbv:
    """A verifier that chooses the path of the greatest q / p and verifies it as a block."""

    guarantee: ClassVar[Guarantee] = Guarantee.EXACT

    def refuses(self, drawn: Drawn, tree: bool) -> str | None:
        """Refuse drafts whose paths are not independent: the chosen path's law assumes that."""
        return refuses_unless_independent("gbv", drawn)

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        """Verify a tree of N nodes, `q` [N+1, V]; depth i of the path uses ACCEPT's uniform i - 1.

        Made for chains. Where nodes of one depth have different numbers of children, only the
        common number is used: the choice may not depend on drawn tokens.
        """
        if draft.probs is None or not len(draft.tokens):  # without laws nothing was drafted
            return Block()(draft, q, noise)
        shape = shape_of(draft)
        levels = even(shape)
        branching = [level.branching for level in levels]
        of_shape = tables(shape, q.device)
        end = chosen(draft, q, shape, of_shape.above)
        on = row(of_shape.paths, end)  # [N]
        used = on[: len(levels)]
        target = q[torch.cat([of_shape.above[used], end[None]])]
        law, tokens = draft.probs[used], draft.tokens[used]
        if max(branching) > 1:  # else there was nothing to choose from
            law = chosen_laws(target[:-1], law, tokens, branching)
        of_path = Block()(Draft(tokens, law), target, noise)
        kept = torch.cat([of_path.path, of_path.path.new_full((len(on) - len(used),), -1)])
        return Verdict(on.where(kept >= 0, -1), of_path.token, of_path.tested)


def chosen_laws(q: Tensor, p: Tensor, tokens: Tensor, branching: Sequence[int]) -> Tensor:
    """Return [D, V], the law of each token of the chosen path given those before it.

    Args:
        q, p: [D, V] both models' laws along the path.
        tokens: [D] of the path.
        branching: [D] of the tree at each depth.
    """
    smaller = masses_below(q, p)
    at = tokens[:, None]
    low, width = (x.gather(1, at)[:, 0].unbind() for x in (smaller, p))  # [D] L and p of its tokens
    laws = [
        p[i] * likelier(smaller[i] + p[i], smaller[i], low[:i], width[:i], branching)
        for i in range(len(branching))
    ]
    return torch.stack(laws).nan_to_num(0.0)


def likelier(
    high: Number,
    less: Number,
    low: Sequence[Number],
    width: Sequence[Number],
    branching: Sequence[int],
) -> Number:
    """Return the ratio of a token's probability after i tokens of the chosen path to its p.

    Args:
        high, less: L + p and L of the token; tensors are changed.
        low, width: [i] L and p of the path before it.
        branching: [D] of the tree at each depth.
    """
    ratio: Number = 1.0
    inside = quotients(high, less, low, width, branching)
    before = quotients(1.0, 0.0, low, width, [*branching[: len(low)], 1])
    for token, text in zip(inside, before, strict=True):
        ratio = ratio * (token / text)
    return ratio


def quotients(
    a: Number,
    b: Number,
    low: Sequence[Number],
    width: Sequence[Number],
    branching: Sequence[int],
) -> list[Number]:
    """Return [i + 1] of each position (a^k - b^k) / (a - b), from the innermost one out.

    a and b are L + p times the power below, computed from the inside; positions without a choice
    only shift and scale. Tensors `a` and `b` are changed. Each quotient is a sum: nothing cancels.
    """
    sums: list[Number] = []
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
            sums.append(quotient(a, b, k))
            if place:
                a, b, shift, slope = a**k, b**k, 0.0, 1.0
        else:
            sums.append(1.0)
    return sums


def quotient(a: Number, b: Number, k: int) -> Number:
    """Return (a^k - b^k) / (a - b) of k >= 2 as a sum."""
    total, power = a + b, b * b
    for _ in range(k - 2):
        total *= a
        total += power
        power *= b
    return total


def masses_below(q: Tensor, p: Tensor) -> Tensor:
    """Return [D, V], p's mass of the tokens ordered before each one by q / p and id."""
    order = by_ratio((q / p).nan_to_num_(0.0))
    running = p.gather(1, order).cumsum(-1)  # a processor adds these in double
    below = torch.zeros_like(p)
    return below.scatter_(1, order[:, 1:], running[:, :-1])


def by_ratio(ratio: Tensor) -> Tensor:
    """Return [D, V], the ids ordered by their ratios, which are not negative, then by id."""
    if ratio.device.type != "cpu" or ratio.dtype != torch.float32:
        return ratio.sort(dim=-1, stable=True).indices
    # Bits of numbers that are not negative are in their order: one whole number holds both keys,
    # and numpy sorts those ten times faster than torch sorts anything.
    keys = (ratio.view(torch.int32).long() << 32) | torch.arange(ratio.shape[-1])
    return torch.from_numpy(numpy.sort(keys.numpy(), axis=-1)) & 0xFFFFFFFF


class Level(NamedTuple):
    """One depth of the used part of a tree."""

    branching: int  # children that each node above has here
    nodes: tuple[int, ...]  # [n]
    parents: tuple[int, ...]  # [n] places in the level above


@lru_cache(KEPT)
def even(shape: Shape) -> tuple[Level, ...]:
    """Return the greatest part of a tree in which all nodes of a depth have as many children."""
    rows, levels = [0], list[Level]()
    while branching := min(len(shape.children[at]) for at in rows):
        nodes = [node for at in rows for node in shape.children[at][:branching]]
        parents = [place for place in range(len(rows)) for _ in range(branching)]
        levels.append(Level(branching, tuple(nodes), tuple(parents)))
        rows = [node + 1 for node in nodes]
    return tuple(levels)


def chosen(draft: Draft, q: Tensor, shape: Shape, above: Tensor) -> Tensor:
    """Return [], the row at the end of the chosen path, on the device."""
    tokens, probs = draft.tokens, draft.probs
    alive = torch.ones(1, dtype=torch.bool, device=q.device)
    levels = sent(shape, q.device)
    for nodes, parents in levels:
        x = tokens[nodes]
        alive = alive[parents]
        ratio = (q[above[nodes], x] / probs[nodes, x]).nan_to_num(0.0)  # type: ignore[index]
        best = ratio.where(alive, -1.0).amax()
        token = x.where(alive & (ratio == best), -1).amax()
        alive = alive & (x == token)
    return row(levels[-1][0], alive.long().argmax()) + 1


@lru_cache(KEPT)
def sent(shape: Shape, device: torch.device) -> tuple[tuple[Tensor, Tensor], ...]:
    """Send the nodes of each level and the places of their parents to a device."""
    both = ((level.nodes, level.parents) for level in even(shape))
    return tuple((send(numbers(a), device), send(numbers(b), device)) for a, b in both)
