"""Recursive rejection: each node's children are tested in turn, then the leftover law is sampled.

For siblings drawn independently the leftover is (q - p)+ each time (SpecInfer, arXiv 2305.09781,
multi-step speculative sampling); for siblings drawn without replacement drawn tokens leave p as
well (EAGLE, arXiv 2401.15077; Sequoia, arXiv 2402.12374). To take one for the other is biased. A
token that was drafted by rule has a one-hot law: it is kept with the mass that q has left for it.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from spsbench.loop.sampling import row, sample, send
from spsbench.loop.types import Draft, Drawn, Guarantee, Noise, Purpose, Verdict, Verifier
from spsbench.methods.verifiers.tree_rejection import TreeRejection
from spsbench.methods.verifiers.tree_tables import (
    path_to,
    shape_of,
    tables,
    walked_down,
)


@dataclass(frozen=True)
class Recursive(Verifier):
    """A verifier that descends to the first kept child, else draws from the leftover of q."""

    guarantee: ClassVar[Guarantee] = Guarantee.EXACT

    def refuses(self, drawn: Drawn, tree: bool) -> str | None:
        return None

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        """Verify a tree of N nodes, `q` [N+1, V]; the test of node i uses ACCEPT's uniform i."""
        shape = shape_of(draft)
        u = send(noise.uniform(Purpose.ACCEPT, len(draft.tokens)), q.device)
        last = noise.uniform(Purpose.FINAL, 1)[0]
        of_shape = tables(shape, q.device)
        rejection = TreeRejection(draft, q, shape).settle_all(lambda rows: q.new_ones(len(rows)))
        end = walked_down(u < rejection.chance[1:], of_shape)
        token = sample(rejection.law_at(end), last)
        return Verdict(path_to(end, of_shape), token, row(of_shape.tested, end))
