"""Recursive rejection: each node's children are tested in turn, then the leftover law is sampled.

For siblings drawn independently the leftover is (q - p)+ each time (SpecInfer, arXiv 2305.09781,
multi-step speculative sampling); for siblings drawn without replacement drawn tokens leave p as
well (EAGLE, arXiv 2401.15077; Sequoia, arXiv 2402.12374). To take one for the other is biased. A
token that was drafted by rule has a one-hot law: it is kept with the mass that q has left for it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from spsbench.loop.types import Draft, Noise
from spsbench.methods.verifiers.tree_rejection import TreeRejection
from spsbench.methods.verifiers.walk_down import Tested, WalkDown, drawn_from, uniforms


@dataclass(frozen=True)
class Recursive(WalkDown):
    """A verifier that descends to the first kept child, else draws from the leftover of q."""

    def test(self, draft: Draft, q: Tensor, noise: Noise) -> Tested:
        rejection = TreeRejection(draft, q)
        rejection.settle_all(lambda rows: q.new_ones(len(rows)))
        passed = uniforms(draft, q, noise) < rejection.chance[1:]
        return (passed, drawn_from(lambda end: rejection.law_at(torch.as_tensor(end)), noise))
