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

from spsbench.loop.sampling import row, sample
from spsbench.loop.transfer import send
from spsbench.loop.types import Draft, Drawn, Guarantee, Noise, Purpose, Verdict
from spsbench.methods.verifiers.ladder import Ladder
from spsbench.methods.verifiers.shape import path_to, shape_of, tables


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
        known = tables(shape, q.device)
        n = len(draft.tokens)
        u = send(noise.uniform(Purpose.ACCEPT, n), q.device)
        last = noise.uniform(Purpose.FINAL, 1)[0]

        ladder, first = Ladder(draft, q, shape), 0
        keep = ladder.chance  # [N + 1] of a node itself, given that nothing below it was kept
        for rows in shape.levels:
            ladder.settle(first, rows, chances(ladder.chance, rows))
            first += len(rows)
        if ladder.order:
            places = send(torch.tensor(ladder.order), q.device)
            keep = keep.index_copy(0, places, ladder.weight)

        passed = (u < keep[1:])[known.upwards]  # [N] in the order of the walk
        place = passed.long().argmax() if n else passed.new_zeros((), dtype=torch.int64)
        found = passed.any()
        end = (row(known.upwards, place) + 1).where(found, 0) if n else place
        token = sample(ladder.law_at(end), last)
        return Verdict(path_to(end, known), token, torch.full_like(end, -1))


def chances(chance: Tensor, rows: tuple[int, ...]) -> Tensor:
    """[rows] what was found of some rows, a copy."""
    if rows[-1] - rows[0] == len(rows) - 1 and list(rows) == sorted(rows):
        return chance[rows[0] : rows[-1] + 1].clone()
    return chance.index_select(0, send(torch.tensor(rows), chance.device))
