"""Traversal Verification (arXiv 2505.12398): a tree is verified from its leaves up.

Each node gets the probability that *it or a descendant* is accepted; a subtree is tried before its
root is dropped, and a rejection below raises the probability of the siblings. Proof in a line: let
S be the mass left after a child. Then P(accepted at or below x) = a_x by induction, since (a - S) +
(1 - a + S) S / (1 - a + S) = a. On a chain it is block verification (`block`), from the same
uniforms token for token.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from spsbench.loop.sampling import row, sample, send
from spsbench.loop.types import Draft, Noise, Purpose, Verdict
from spsbench.methods.verifiers.tree_rejection import TreeRejection, take_rows
from spsbench.methods.verifiers.walk_down import Accepting, uniforms


@dataclass(frozen=True)
class Traversal(Accepting):
    """A verifier that keeps the first node, from the leaves up, that passes.

    The test of node i uses ACCEPT's uniform i.
    """

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        """Keep the path to the first node that passes, from the leaves up, then draw after it."""
        n, u = len(draft.tokens), uniforms(draft, q, noise)
        last = noise.uniform(Purpose.FINAL, 1)[0]
        tables = draft.tree.tables(q.device)
        rejection = TreeRejection(draft, q)
        rejection.refuse_all(lambda rows: take_rows(rejection.chance, rows).clone())
        keep = rejection.chance  # [N + 1] of a node itself, given that nothing below it was kept
        if rejection.order:
            places = send(torch.tensor(rejection.order), q.device)
            keep = keep.index_copy(0, places, rejection.weight)
        passed = (u < keep[1:])[tables.upwards]  # [N] in the order of the walk
        place = passed.long().argmax() if n else passed.new_zeros((), dtype=torch.int64)
        end = (row(tables.upwards, place) + 1).where(passed.any(), 0) if n else place
        token = sample(rejection.probs_at(end), last)
        return Verdict(tables.path_to(end), token, torch.full_like(end, -1))
