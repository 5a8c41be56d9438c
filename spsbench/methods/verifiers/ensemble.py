"""Speculative sampling towards a mixture of target and draft.

Lossy, with a law that can be written down: `sps`, with w p + (1 - w) q in the place of q.
transformers' `assistant_ensemble_weight` is the same idea.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spsbench.loop.types import Draft, Drawn, Guarantee, Noise, Verdict
from spsbench.methods.verifiers.sps import Sps, chain_laws, refuses_unless_sampled_chain
from spsbench.plugins import check_share


@dataclass(frozen=True)
class Ensemble:
    """`sps` whose target is m = w p + (1 - w) q wherever there is a p.

    Law of a drafted slot: exactly m, so its total variation from q is w TV(p, q). The bonus token
    follows no drafted slot, has no p and comes from q: how often depends on K, and so does the law
    of a text. `w` 0 is `sps`, 1 keeps every draft.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY

    w: float = 0.3

    def __post_init__(self) -> None:
        check_share("w", self.w)

    def refuses(self, drawn: Drawn, tree: bool) -> str | None:
        """It divides by the law each token was drawn from, along one chain."""
        return refuses_unless_sampled_chain("ensemble", drawn, tree)

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        """Chain of N tokens, `q` [N+1, V]; noise as `sps`."""
        mixed = self.law(q[:-1], chain_laws(draft, q)[:-1])
        return Sps()(draft, torch.cat([mixed, q[-1:]]), noise)

    def law(self, q: Tensor, p: Tensor) -> Tensor:
        """[..., V] what a drafted slot emits where the target's law is `q` and the draft's `p`."""
        return self.w * p + (1 - self.w) * q

    def kept(self, q: Tensor, p: Tensor) -> Tensor:
        """[..., V] of that what the draft gives; the sum is the chance that a slot is kept."""
        return torch.minimum(p, self.law(q, p))
