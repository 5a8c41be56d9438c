"""Traversal Verification (arXiv 2505.12398): a tree is judged from its leaves up.

Each node gets the chance that *it or something below it* is accepted; a subtree has its try before
its root is dropped, and what was refused below raises the chance of the nodes beside it. Proof in a
line: let S be the mass left after a child. Then P(accepted at or below x) = a_x by induction, since
(a - S) + (1 - a + S) S / (1 - a + S) = a. On a chain it is block verification (`block`), from the
same uniforms token for token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from spsbench.loop.sampling import at_hand, row, sample, send
from spsbench.loop.types import Draft, Drawn, Guarantee, Noise, Purpose, Verdict
from spsbench.methods.verifiers.rungs import Tree
from spsbench.methods.verifiers.tree_rejection import Ladder
from spsbench.methods.verifiers.tree_tables import Shape, path_to, shape_of, tables, verdict_at


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
        if (seen := at_hand(u)) is not None:
            at, left = walked(Tree(draft, q, shape), seen)
            return verdict_at(shape, at, sample(left, last), -1)

        known = tables(shape, q.device)
        ladder = ladder_of(draft, q, shape)
        keep = ladder.chance  # [N + 1] of a node itself, given that nothing below it was kept
        if ladder.order:
            places = send(torch.tensor(ladder.order), q.device)
            keep = keep.index_copy(0, places, ladder.weight)
        passed = (u < keep[1:])[known.upwards]  # [N] in the order of the walk
        place = passed.long().argmax() if n else passed.new_zeros((), dtype=torch.int64)
        found = passed.any()
        end = (row(known.upwards, place) + 1).where(found, 0) if n else place
        token = sample(ladder.law_at(end), last)
        return Verdict(path_to(end, known), token, torch.full_like(end, -1))


def walked(tree: Tree, u: Sequence[float]) -> tuple[int, Tensor]:
    """The row where the walk up ends, and the weights [V] of the token after it."""
    shape, rungs = tree.shape, {0: tree.rung(0)}
    for node in shape.upwards:
        closed = [node + 1]  # from here up, rows that the walk comes to for the first time
        while closed[-1] not in rungs:
            closed.append(shape.parents[closed[-1] - 1] + 1)
        for at, above in reversed(list(pairwise(closed))):
            rungs[at] = tree.rung(at, rungs[above].chance(at - 1))
        rung = rungs.pop(node + 1)
        if rung.passes(u[node]):
            return rung.at, rung.rest()
        rungs[shape.parents[node] + 1].refuse(node)
    return 0, rungs[0].rest()


def ladder_of(draft: Draft, q: Tensor, shape: Shape) -> Ladder:
    """The same for all nodes at once, before a uniform is looked at."""
    ladder, first = Ladder(draft, q, shape), 0
    for rows in shape.levels:
        ladder.settle(first, rows, chances(ladder.chance, rows))
        first += len(rows)
    return ladder


def chances(chance: Tensor, rows: tuple[int, ...]) -> Tensor:
    """[rows] what was found of some rows, a copy."""
    if rows[-1] - rows[0] == len(rows) - 1 and list(rows) == sorted(rows):
        return chance[rows[0] : rows[-1] + 1].clone()
    return chance.index_select(0, send(torch.tensor(rows), chance.device))
