"""Lenience (Leviathan et al. 2023, appendix A.5): a draft token is let pass where q is only near p.

Lossy. The paper leaves open what is drawn after a rejection. Here it is the residual of `sps`,
(q - p)+, with which the output is as near to q as its acceptance allows and no token comes more
often than q / l.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spsbench.loop.sampling import residual, row, sample, send
from spsbench.loop.types import Draft, Drawn, Guarantee, Noise, Purpose, Verdict
from spsbench.methods.verifiers.sps import chain_laws, refuses_unless_sampled_chain


@dataclass(frozen=True)
class Lenient:
    """Keep x with probability min(1, q / (l p)); at the first rejection draw from (q - p)+.

    Law of a drafted slot: min(p, q / l) + (1 - sum min(p, q / l)) (q - p)+ / sum (q - p)+, at most
    q / l; of the bonus token: q. `l` 1 is `sps`. At temperature 0 both laws are one-hot, and
    nothing is lost and nothing gained.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY

    l: float = 0.5  # noqa: E741 - the paper's letter

    def __post_init__(self) -> None:
        if not 0 < self.l <= 1:
            raise ValueError(f"l is {self.l}: expected more than 0, up to 1")

    def refuses(self, drawn: Drawn, tree: bool) -> str | None:
        """It divides by the law each token was drawn from, along one chain."""
        return refuses_unless_sampled_chain("lenient", drawn, tree)

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        """Chain of N tokens, `q` [N+1, V]; the test of slot i uses ACCEPT's uniform i."""
        n = len(draft.tokens)
        slots = torch.arange(n, device=q.device)
        p = chain_laws(draft, q)  # [N + 1, V]
        u = send(noise.uniform(Purpose.ACCEPT, n), q.device)
        last = noise.uniform(Purpose.FINAL, 1)[0]

        ratio = q[slots, draft.tokens] / p[slots, draft.tokens]  # NaN (0 / 0) rejects
        a = (u * self.l < ratio).long().cumprod(0).sum()
        token = sample(residual(row(q, a), row(p, a)), last)
        return Verdict(slots.where(slots < a, -1), token, (a + 1).clamp(max=n))

    def law(self, q: Tensor, p: Tensor) -> Tensor:
        """[..., V] what a drafted slot emits where the target's law is `q` and the draft's `p`."""
        kept = self.kept(q, p)
        rest = residual(q, p)
        return kept + (1 - kept.sum(-1, keepdim=True)) * rest / rest.sum(-1, keepdim=True)

    def kept(self, q: Tensor, p: Tensor) -> Tensor:
        """[..., V] of that what the draft gives; the sum is the chance that a slot is kept."""
        return torch.minimum(p, q / self.l)
