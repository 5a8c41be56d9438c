"""Recursive rejection: at each node its children one after the other, then the leftover law.

For siblings drawn independently the leftover is (q - p)+ each time (SpecInfer, arXiv 2305.09781,
multi-step speculative sampling); for siblings drawn without replacement what was drawn leaves p as
well (EAGLE, arXiv 2401.15077; Sequoia, arXiv 2402.12374). To take one for the other is biased. A
token that came by rule is its own law: it is kept with what q has left for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from spsbench.loop.sampling import at_hand, row, sample, send
from spsbench.loop.types import Draft, Drawn, Guarantee, Noise, Purpose, Verdict
from spsbench.methods.verifiers.rungs import Tree
from spsbench.methods.verifiers.tree_rejection import Ladder
from spsbench.methods.verifiers.tree_tables import (
    Shape,
    path_to,
    shape_of,
    tables,
    verdict_at,
    walked_down,
)


@dataclass(frozen=True)
class Recursive:
    """Go down to the first child that is kept; where none is, draw from what q has left."""

    guarantee: ClassVar[Guarantee] = Guarantee.EXACT

    def refuses(self, drawn: Drawn, tree: bool) -> str | None:
        """Nothing: siblings may be independent, distinct, or there by rule."""
        return None

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        """Tree of N nodes, `q` [N+1, V]; the test of node i uses ACCEPT's uniform i."""
        shape = shape_of(draft)
        u = send(noise.uniform(Purpose.ACCEPT, len(draft.tokens)), q.device)
        last = noise.uniform(Purpose.FINAL, 1)[0]
        if (seen := at_hand(u)) is not None:
            at, left = walked(Tree(draft, q, shape), seen)
            tested = len(shape.path(at)) + bool(shape.children[at])
            return verdict_at(shape, at, sample(left, last), tested)

        known = tables(shape, q.device)
        ladder = ladder_of(draft, q, shape)
        end = walked_down(u < ladder.chance[1:], known)
        token = sample(ladder.law_at(end), last)
        return Verdict(path_to(end, known), token, row(known.tested, end))


def walked(tree: Tree, u: Sequence[float]) -> tuple[int, Tensor]:
    """The row where the walk down ends, and the weights [V] of the token after it."""
    rung = tree.rung(0)
    while True:
        for node in tree.shape.children[rung.at]:
            if u[node] < rung.chance(node):
                rung = tree.rung(node + 1)
                break
            rung.refuse(node)
        else:
            return rung.at, rung.rest()


def ladder_of(draft: Draft, q: Tensor, shape: Shape) -> Ladder:
    """The same for all nodes at once, before a uniform is looked at."""
    ladder, first = Ladder(draft, q, shape), 0
    for rows in shape.levels:
        ladder.settle(first, rows, q.new_ones(len(rows)))
        first += len(rows)
    return ladder
