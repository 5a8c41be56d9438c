"""Greedy multi-path block verification (GBV, arXiv 2602.16961).

Of several paths that were drawn independently, one is chosen by the laws alone: at each place the
token with the greatest q / p of those drawn there, of equal ones that with the greatest id. The law
of the chosen path is known, and block verification is exact for any law that a chain was really
drawn from: so the chosen path is judged by `block`, against its own law.

That law: order the paths token by token in this way, and let L be p's mass of the smaller tokens.
A path of branching k_1, k_2, ... is below (x_1, x_2, ...) with the chance

    (L(x_1) + p(x_1) (L(x_2) + p(x_2) (...)^k_3)^k_2)^k_1

so the chance that the chosen path begins with a prefix is the difference of two of these: with all
that may follow counted, and with none of it. Differences of powers are written as a product, since
a long prefix has little mass. K chains are the branching (K, 1, 1, ...) of the paper.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy
import torch
from torch import Tensor

from spsbench.loop.sampling import row
from spsbench.loop.transfer import send
from spsbench.loop.types import Draft, Drawn, Guarantee, Noise, Verdict
from spsbench.methods.verifiers.block import Block
from spsbench.methods.verifiers.shape import KEPT, Shape, numbers, shape_of, tables
from spsbench.methods.verifiers.spectr import refuses_unless_independent


@dataclass(frozen=True)
class Gbv:
    """Choose the path of the greatest q / p, and verify it as a block against its own law."""

    guarantee: ClassVar[Guarantee] = Guarantee.EXACT

    def refuses(self, drawn: Drawn, tree: bool) -> str | None:
        """The law of the chosen path is that of independent ones."""
        return refuses_unless_independent("gbv", drawn)

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        """Tree of N nodes, `q` [N+1, V]; depth i of the chosen path uses ACCEPT's uniform i - 1.

        Made for chains. Of a tree whose nodes of one depth have more children here than there it
        takes as many as all have: what it uses may not depend on what was drawn.
        """
        if draft.probs is None or not len(draft.tokens):  # without laws nothing was drafted
            return Block()(draft, q, noise)
        shape = shape_of(draft)
        known = tables(shape, q.device)
        levels = even(shape, q.device)
        end = chosen(draft, q, levels, known.above)
        path = row(known.paths, end)  # [N]
        nodes = path[: len(levels)]

        rows = torch.cat([known.above[nodes], end[None]])
        own, laws, tokens = q[rows], draft.probs[nodes], draft.tokens[nodes]
        branching = [level.branching for level in levels]
        if max(branching) > 1:  # else there was nothing to choose from
            laws = chosen_laws(own[:-1], laws, tokens, branching)
            own = own.double()
        ruled = Block()(Draft(tokens, laws), own, noise)
        kept = torch.cat([ruled.path, ruled.path.new_full((len(path) - len(nodes),), -1)])
        return Verdict(path.where(kept >= 0, -1), ruled.token, ruled.tested)


class Level(NamedTuple):
    """One depth of what is used of a tree."""

    branching: int  # children that each node above has here
    nodes: Tensor  # [n]
    parents: Tensor  # [n] places in the level above


@lru_cache(KEPT)
def even(shape: Shape, device: torch.device) -> tuple[Level, ...]:
    """The greatest part of a tree whose nodes of one depth have the same number of children."""
    rows, levels = [0], list[Level]()
    while branching := min(len(shape.children[at]) for at in rows):
        nodes = [node for at in rows for node in shape.children[at][:branching]]
        parents = [place for place in range(len(rows)) for _ in range(branching)]
        levels.append(
            Level(branching, send(numbers(nodes), device), send(numbers(parents), device))
        )
        rows = [node + 1 for node in nodes]
    return tuple(levels)


def chosen(draft: Draft, q: Tensor, levels: Sequence[Level], above: Tensor) -> Tensor:
    """[] the row at the end of the chosen path; equal paths are one."""
    tokens, probs = draft.tokens, draft.probs
    alive = torch.ones(1, dtype=torch.bool, device=q.device)
    for level in levels:
        x = tokens[level.nodes]
        alive = alive[level.parents]
        ratio = (q[above[level.nodes], x] / probs[level.nodes, x]).nan_to_num(0.0)  # type: ignore[index]
        best = ratio.where(alive, -1.0).amax()
        token = x.where(alive & (ratio == best), -1).amax()
        alive = alive & (x == token)
    return row(levels[-1].nodes, alive.long().argmax()) + 1


def chosen_laws(q: Tensor, p: Tensor, tokens: Tensor, branching: Sequence[int]) -> Tensor:
    """[D, V] the law of each token of the chosen path, given those before it.

    Args:
        q, p: [D, V] both models' laws along it.
        tokens: [D] it.
        branching: [D] of the tree at each depth.
    """
    smaller, p = masses_below(q, p), p.double()
    at = tokens[:, None]
    low, width = smaller.gather(1, at)[:, 0], p.gather(1, at)[:, 0]  # [D] L and p of its tokens
    found = []
    for i, k in enumerate(branching):
        inner = factor(smaller[i] + p[i], smaller[i], k)  # [V] what may follow, and what is below
        outer = factor(low.new_ones(()), low.new_zeros(()), 1)
        for j in range(i)[::-1]:
            inner, outer = (
                factor(low[j] + width[j] * high, low[j] + width[j] * less, branching[j], so_far)
                for high, less, so_far in (inner, outer)
            )
        found.append((p[i] * inner[2] / outer[2]).nan_to_num(0.0))
    return torch.stack(found)


Powers = tuple[Tensor, Tensor, Tensor]
"""a^k, b^k, and the quotient (a^k - b^k) / (a - b) times those of the deeper places."""


def factor(a: Tensor, b: Tensor, k: int, so_far: Tensor | float = 1.0) -> Powers:
    """One place of the nested powers; the quotient is a sum, so that nothing cancels."""
    if k == 1:
        return a, b, torch.ones_like(a) * so_far
    between = torch.stack([a**j * b ** (k - 1 - j) for j in range(k)]).sum(0)
    return a**k, b**k, between * so_far


def masses_below(q: Tensor, p: Tensor) -> Tensor:
    """[D, V] float64, p's mass of the tokens before each one, in the order of q / p and of ids."""
    order = by_ratio((q / p).nan_to_num(0.0))
    p = p.double()
    running = p.gather(1, order).cumsum(-1)
    before = torch.cat([running.new_zeros(len(p), 1), running[:, :-1]], -1)
    return torch.zeros_like(p).scatter(1, order, before)


def by_ratio(ratio: Tensor) -> Tensor:
    """[D, V] the ids in the order of their ratios, none of them negative, then of ids."""
    if ratio.device.type != "cpu" or ratio.dtype != torch.float32:
        return ratio.sort(dim=-1, stable=True).indices
    # Bits of numbers that are not negative are in their order: one whole number holds both keys,
    # and numpy sorts those ten times faster than torch sorts anything.
    keys = (ratio.view(torch.int32).long() << 32) | torch.arange(ratio.shape[-1])
    return torch.from_numpy(numpy.sort(keys.numpy(), axis=-1)) & 0xFFFFFFFF
