"""Acceptance at a given rate, for timing without trained weights. The output is meaningless."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spsbench.loop.sampling import row, send
from spsbench.loop.types import Draft, Drawn, Guarantee, Noise, Purpose, Verdict, Verifier
from spsbench.plugins import check_share


@dataclass(frozen=True)
class Synthetic(Verifier):
    """A verifier that keeps each draft token with probability `alpha`: for timing only."""

    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY

    alpha: float = 0.8

    def __post_init__(self) -> None:
        check_share("alpha", self.alpha)

    def refuses(self, drawn: Drawn, tree: bool) -> str | None:
        return (
            "verifier synthetic accepts along one chain: use a drafter of chains" if tree else None
        )

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        n = len(draft.tokens)
        slots = torch.arange(n, device=q.device)
        u = send(noise.uniform(Purpose.ACCEPT, n), q.device)
        a = (u < self.alpha).long().cumprod(0).sum()
        return Verdict(slots.where(slots < a, -1), row(q, a).argmax(), (a + 1).clamp(max=n))
