"""Typical acceptance (Cai et al. 2024, Medusa, arXiv 2401.10774, section 2.3)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from spsbench.methods.checks import check_share
from spsbench.methods.verifiers.allowing import Allowing


@dataclass(frozen=True)
class Typical(Allowing):
    """Keep x while q(x) > min(epsilon, delta exp(-H(q))); then draw from q.

    Lossy, and without a bound: the law of a drafted slot is `Allowing.law` with that set, where a
    token of chance `epsilon` may come every time that the draft proposes it. H in nats. The
    defaults are Medusa's; where it then takes the target's likeliest token, this draws one from q.
    At temperature 0 it is greedy decoding.
    """

    epsilon: float = 0.09
    delta: float = 0.3

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            check_share(name, getattr(self, name))

    def allowed(self, q: Tensor) -> Tensor:
        """Tokens above the smaller of the two thresholds."""
        spread: Tensor = torch.special.entr(q).sum(-1, keepdim=True)
        least = (self.delta * (-spread).exp()).clamp(max=self.epsilon)
        return q > least
