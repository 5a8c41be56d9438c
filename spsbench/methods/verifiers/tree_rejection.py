"""Siblings tested one after the other: what is left of the target's probs when each was refused.

A node has the distribution Q of the target and a weight a, the probability with which it is to be
accepted with all that is below it. Together they are one row of mass, R = a Q. Its children are
tested in the order in which they were sampled; x, sampled from P, is accepted with probability
min(1, R(x) / P(x)), and when it is refused, with S = sum (R - P)+,

    R <- (R - P)+ / (S + 1 - a),    a <- S / (S + 1 - a).

With a = 1 this is recursive rejection: R <- (R - P)+ rescaled (SpecInfer, arXiv 2305.09781; EAGLE,
arXiv 2401.15077; Sequoia, arXiv 2402.12374). With the a that came down from above it is Traversal
Verification (arXiv 2505.12398). P of a later sibling is the same distribution where siblings
are independent, that without the earlier ones where they are distinct, and all on x where x is
deterministic. No state depends on a uniform.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spsbench.loop.sampling import row_slices, send
from spsbench.loop.tree import to_int64
from spsbench.loop.types import Draft, Drawn, Noise
from spsbench.methods.verifiers.walk_down import Tested, WalkDown, drawn_from, uniforms


class TreeRejection:
    """The leftover mass of all nodes that have children, and every node's acceptance probability.

    A row keeps its value after the last child, up to its own scale: R = left / scale. So a child
    costs three passes over a row and no copy of it.
    """

    def __init__(self, draft: Draft, q: Tensor) -> None:
        self.draft, self.q, self.tree = draft, q, draft.tree
        self.point = draft.probs is None or draft.drawn is Drawn.POINT
        self.order = [at for rows in self.tree.levels for at in rows]
        self.left = q.new_empty(len(self.order), q.shape[-1])  # [rows with children, V]
        self.weight = q.new_ones(len(self.order))  # [rows with children] a, after all children
        self.scale = q.new_ones(len(self.order))  # [rows with children]
        self.chance = q.new_zeros(len(draft.tokens) + 1)  # [N + 1] of each row, given its parent
        self.chance[0] = 1.0

    def refuse_all(self, weights: Callable[[tuple[int, ...]], Tensor]) -> None:
        """Refuse the children of all rows, level by level, before any uniform is used.

        `weights` maps the rows of a level to [rows], the a of each: the probability to accept it
        with all that is below it. It is called once `chance` of these rows is set.
        """
        first = 0
        for rows in self.tree.levels:
            self.refuse_level(first, rows, weights(rows))
            first += len(rows)

    def refuse_level(self, first: int, rows: Sequence[int], weights: Tensor) -> None:
        """Refuse all children of `rows` in turn, from the given weights on; set their chances.

        `rows` are a level: `order` from its index `first` on, those with the most children first.
        `weights` [rows] has the probability of each row.
        """
        children = [self.tree.children[at] for at in rows]
        tiny = torch.finfo(self.q.dtype).tiny
        self.weight[first : first + len(rows)] = weights
        self.scale[first : first + len(rows)] = 1 / weights.clamp(min=tiny)
        for some in row_slices(len(rows), self.q):
            for rank in range(len(children[some.start])):
                nodes = [below[rank] for below in children[some] if rank < len(below)]
                here = slice(first + some.start, first + some.start + len(nodes))
                before = self.left[here] if rank else take_rows(self.q, rows[some])
                self._refuse(here, before, nodes, rank)

    def _refuse(self, here: slice, before: Tensor, nodes: Sequence[int], rank: int) -> None:
        """Set the chance of one child, from 0 its `rank`, of each row of `order[here]`; refuse it.

        `before` [n, V] is the mass of the rows, `nodes` their children. `left`, `weight` and
        `scale` of the rows change in place.
        """
        left, scale = self.left[here], self.scale[here]  # changed in place
        tokens = take_rows(self.draft.tokens, nodes)[:, None]  # [n, 1]
        possible = self.weight[here] > 0  # else the scale stands for no number
        mass = (before.gather(1, tokens)[:, 0] / scale).where(possible, 0.0)
        if self.point:
            chance = mass
            left.copy_(before).scatter_(1, tokens, 0.0)
        else:
            probs, total = self._probs(nodes, rank)  # P = probs / total
            chance = mass / probs.gather(1, tokens)[:, 0] * total
            torch.addcmul(before, probs, -(scale / total)[:, None], out=left).clamp_(min=0)
        chance = chance.nan_to_num(0.0).clamp(max=1.0)
        if nodes[-1] - nodes[0] == len(nodes) - 1:
            self.chance[nodes[0] + 1 : nodes[-1] + 2] = chance
        else:
            self.chance.index_copy_(0, send(to_int64(nodes), chance.device) + 1, chance)
        excess = (left.sum(-1) / scale).where(possible, 0.0)
        room = excess + (1 - self.weight[here])
        # Without room the two are equal: only rounding refuses there.
        self.weight[here] = torch.where(room > 0, excess / room, 1.0)
        scale.mul_(torch.where(room > 0, room, 1.0))

    def _probs(self, nodes: Sequence[int], rank: int) -> tuple[Tensor, Tensor]:
        """Return [n, V] probs of `nodes`, 0 for distinct siblings before each, and [n] sums."""
        probs = take_rows(self.draft.probs, nodes)  # type: ignore[arg-type]  # not of a point draft
        if rank == 0 or self.draft.drawn is not Drawn.DISTINCT:
            return probs, probs.new_ones(len(nodes))
        before = [self.tree.children[self.tree.parents[node] + 1][:rank] for node in nodes]
        drawn = take_rows(self.draft.tokens, [node for some in before for node in some])
        probs = probs.scatter(1, drawn.view(len(nodes), rank), 0.0)
        return probs, probs.sum(-1)

    def probs_at(self, end: Tensor) -> Tensor:
        """Return [V] weights of the token after row `end` []: the leftover; q for a leaf."""
        probs = self.q.index_select(0, end[None])[0]
        if not self.order:
            return probs
        places = [-1] * (len(self.draft.tokens) + 1)
        for index, at in enumerate(self.order):
            places[at] = index
        place = send(to_int64(places), end.device).index_select(0, end[None])
        left = self.left.index_select(0, place.clamp(min=0))[0]
        return torch.where((place >= 0) & (left.sum() > 0), left, probs)


def take_rows(rows: Tensor, numbered: Sequence[int]) -> Tensor:
    """Return [n, ...], some rows of a tensor: a view, not a copy, where they are contiguous."""
    first, n = numbered[0], len(numbered)
    if list(numbered) == list(range(first, first + n)):
        return rows[first : first + n]
    return rows.index_select(0, send(to_int64(numbered), rows.device))


def excesses(weight: Tensor, q: Tensor, p: Tensor) -> Tensor:
    """Return [n], sum (weight q - p)+ of each row; `weight` [n], `q` and `p` [n, V]."""
    excess = torch.zeros_like(weight)
    for some in row_slices(len(weight), q):
        under = torch.addcmul(p[some], q[some], weight[some, None], value=-1).clamp_(max=0)
        excess[some] = -under.sum(-1)
    return excess


@dataclass(frozen=True)
class Recursive(WalkDown):
    """A verifier that descends to the first accepted child, else samples from the leftover of q.

    To take siblings drawn independently for siblings drawn without replacement is biased.
    """

    def test(self, draft: Draft, q: Tensor, noise: Noise) -> Tested:
        rejection = TreeRejection(draft, q)
        rejection.refuse_all(lambda rows: q.new_ones(len(rows)))
        passed = uniforms(draft, q, noise) < rejection.chance[1:]
        return (passed, drawn_from(lambda end: rejection.probs_at(torch.as_tensor(end)), noise))
