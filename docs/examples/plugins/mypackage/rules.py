"""Two verifiers: one-sample match for short drafts, and the rule of the paper."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spsbench.loop.sampling import residual, row, sample
from spsbench.loop.types import Draft, Drawn, Guarantee, Noise, Purpose, Verdict, Verifier


@dataclass(frozen=True)
class Cautious(Verifier):
    """The target samples its own tokens; at most `most` drafted ones are compared with them."""

    guarantee: ClassVar[Guarantee] = Guarantee.EXACT
    most: int = 2

    def refuses(self, drawn: Drawn, tree: bool) -> str | None:
        return "it compares chains only" if tree else None

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        n = len(draft.tokens)
        seen = min(n, self.most)
        own = sample(q[: seen + 1], noise.uniform(Purpose.PLAIN, seen + 1))  # [seen + 1]
        kept = (own[:seen] == draft.tokens[:seen]).long().cumprod(0).sum()
        slots = torch.arange(n, device=q.device)
        tested = (kept + 1).clamp(max=seen)
        return Verdict(slots.where(slots < kept, -1), row(own, kept), tested)


class Rejection(Verifier):
    """Accepts a token with min(1, q/p); samples from (q - p)+ at the first rejection."""

    guarantee: ClassVar[Guarantee] = Guarantee.EXACT

    def refuses(self, drawn: Drawn, tree: bool) -> str | None:
        sampled_chain = drawn is Drawn.IID and not tree
        return (
            None
            if sampled_chain
            else "it divides by p, the distribution that each token was sampled from"
        )

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        n = len(draft.tokens)
        p = torch.zeros_like(q)  # [N + 1, V]; against the last row, of zeros, the residual is q
        if draft.probs is not None:
            p[:n] = draft.probs
        own = draft.tokens[:, None]
        ratio = (q[:n].gather(1, own) / p[:n].gather(1, own))[:, 0]  # [N]
        u = noise.uniform(Purpose.ACCEPT, n).to(q.device)
        kept = (u < ratio).long().cumprod(0).sum()
        token = sample(residual(row(q, kept), row(p, kept)), noise.uniform(Purpose.FINAL, 1)[0])
        slots = torch.arange(n, device=q.device)
        return Verdict(slots.where(slots < kept, -1), token, (kept + 1).clamp(max=n))
