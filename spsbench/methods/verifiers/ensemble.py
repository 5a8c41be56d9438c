"""Speculative sampling towards a mixture of target and draft.

Lossy, with an explicit law: `sps` with w p + (1 - w) q in the place of q. transformers'
`assistant_ensemble_weight` is the same idea.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spsbench.loop.types import Draft, Drawn, Guarantee, Noise, Verdict, Verifier
from spsbench.methods.verifiers.sps import Sps, chain_laws, refuses_unless_sampled_chain
from spsbench.plugins import check_share


@dataclass(frozen=True)
class Ensemble(Verifier):
    """A verifier that runs `sps` with the target m = w p + (1 - w) q wherever there is a p.

    The law of a drafted slot is exactly m, so its total variation from q is w TV(p, q). The bonus
    token has no p and comes from q: its frequency depends on K, and so does the law of a text. `w`
    0 is `sps`, 1 keeps every draft.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY

    w: float = 0.3

    def __post_init__(self) -> None:
        check_share("w", self.w)

    def refuses(self, drawn: Drawn, tree: bool) -> str | None:
        return refuses_unless_sampled_chain("ensemble", drawn, tree)

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        mixed = self.law(q[:-1], chain_laws(draft, q)[:-1])
        return Sps()(draft, torch.cat([mixed, q[-1:]]), noise)

    def law(self, q: Tensor, p: Tensor) -> Tensor:
        """Return the [..., V] output law of a drafted slot with the laws `q` and `p`."""
        return self.w * p + (1 - self.w) * q

    def kept(self, q: Tensor, p: Tensor) -> Tensor:
        """Return the [..., V] part of the output that the draft provides; its sum: acceptance."""
        return torch.minimum(p, self.law(q, p))
