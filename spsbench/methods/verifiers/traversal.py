"""Traversal Verification (arXiv 2505.12398): a tree is judged from its leaves up.

Each node gets the chance that *it or something below it* is accepted; a subtree has its try before
its root is dropped, and what was refused below raises the chance of the nodes beside it. Proof in a
line: let S be the mass left after a child. Then P(accepted at or below x) = a_x by induction, since
(a - S) + (1 - a + S) S / (1 - a + S) = a. On a chain it is block verification (`block`), from the
same uniforms token for token.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spsbench.loop.sampling import row, sample, send
from spsbench.loop.types import Draft, Drawn, Guarantee, Noise, Purpose, Verdict
from spsbench.methods.verifiers.tree_rejection import TreeRejection
from spsbench.methods.verifiers.tree_tables import Shape, path_to, shape_of, tables


@dataclass(frozen=True)
class Traversal:
    """Keep the first node, from the leaves up, that passes; the context always does."""

    guarantee: ClassVar[Guarantee] = Guarantee.EXACT

    def refuses(self, drawn: Drawn, tree: bool) -> str | None:
        """Nothing: siblings may be independent, distinct, or there by rule."""
        return None

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        """Tree of N nodes, `q` [N+1, V]; the test of node i uses ACCEPT's uniform i."""
        shape = shape_of(draft)
        n = len(draft.tokens)
        u = send(noise.uniform(Purpose.ACCEPT, n), q.device)
        last = noise.uniform(Purpose.FINAL, 1)[0]
        known = tables(shape, q.device)
        rejection = rejection_of(draft, q, shape)
        keep = rejection.chance  # [N + 1] of a node itself, given that nothing below it was kept
        if rejection.order:
            places = send(torch.tensor(rejection.order), q.device)
            keep = keep.index_copy(0, places, rejection.weight)
        passed = (u < keep[1:])[known.upwards]  # [N] in the order of the walk
        place = passed.long().argmax() if n else passed.new_zeros((), dtype=torch.int64)
        found = passed.any()
        end = (row(known.upwards, place) + 1).where(found, 0) if n else place
        token = sample(rejection.law_at(end), last)
        return Verdict(path_to(end, known), token, torch.full_like(end, -1))


def rejection_of(draft: Draft, q: Tensor, shape: Shape) -> TreeRejection:
    """The chances of all nodes, before a uniform is looked at."""
    rejection, first = TreeRejection(draft, q, shape), 0
    for rows in shape.levels:
        rejection.settle(first, rows, chances(rejection.chance, rows))
        first += len(rows)
    return rejection


def chances(chance: Tensor, rows: tuple[int, ...]) -> Tensor:
    """[rows] what was found of some rows, a copy."""
    if rows[-1] - rows[0] == len(rows) - 1 and list(rows) == sorted(rows):
        return chance[rows[0] : rows[-1] + 1].clone()
    return chance.index_select(0, send(torch.tensor(rows), chance.device))
