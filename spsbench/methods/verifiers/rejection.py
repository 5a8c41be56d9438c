"""Rejection sampling without iteration (Leviathan et al. 2023, appendix A.2).

Plain rejection sampling proposes tokens from p until one is kept with q / (M p), M = max q / p. Of
a single proposal that fails, a plain draw from q takes the place: q / M + (1 - 1 / M) q = q. A slot
keeps its token with chance 1 / M, and never more often than `sps` does, whose chance is the sum of
min(p, q): the reason for a residual.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spsbench.loop.sampling import row, sample, send
from spsbench.loop.types import Draft, Drawn, Guarantee, Noise, Purpose, Verdict, Verifier
from spsbench.methods.verifiers.sps import ratios, refuses_unless_sampled_chain


@dataclass(frozen=True)
class Rejection(Verifier):
    """A verifier that keeps x with q / (M p), M = max q / p, and draws from q otherwise."""

    guarantee: ClassVar[Guarantee] = Guarantee.EXACT

    def refuses(self, drawn: Drawn, tree: bool) -> str | None:
        return refuses_unless_sampled_chain("rejection", drawn, tree)

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        """Verify a chain of N tokens, `q` [N+1, V]; the test of slot i uses ACCEPT's uniform i."""
        n = len(draft.tokens)
        slots = torch.arange(n, device=q.device)
        u = send(noise.uniform(Purpose.ACCEPT, n), q.device)
        last = noise.uniform(Purpose.FINAL, 1)[0]
        passed = slots.bool()
        if n and draft.probs is not None:
            # A token without mass in both laws is 0 / 0; one that only q has makes M infinite.
            greatest = (q[:-1] / draft.probs).nan_to_num(0.0, posinf=torch.inf).amax(-1)  # [N] M
            passed = u < ratios(draft, q) / greatest
        a = passed.long().cumprod(0).sum()
        return Verdict(slots.where(slots < a, -1), sample(row(q, a), last), (a + 1).clamp(max=n))
