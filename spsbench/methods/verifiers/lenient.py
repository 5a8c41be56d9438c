"""Lenience (Leviathan et al. 2023, appendix A.5): draft tokens pass where q is only near p.

Lossy. The paper leaves open what is drawn after a rejection. Here it is the residual of `sps`, (q -
p)+, with which the output is as near to q as its acceptance allows and no token comes more often
than q / l.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spsbench.loop.sampling import residual, row, sample, send
from spsbench.loop.types import Draft, Drawn, Guarantee, Noise, Purpose, Verdict, Verifier
from spsbench.methods.verifiers.sps import chain_laws, refuses_unless_sampled_chain


@dataclass(frozen=True)
class Lenient(Verifier):
    """A verifier that keeps x with min(1, q / (l p)) and draws from (q - p)+ after a rejection.

    The law of a drafted slot is min(p, q / l) + (1 - sum min(p, q / l)) (q - p)+ / sum (q - p)+, at
    most q / l; that of the bonus token is q. `l` 1 is `sps`. At temperature 0 x passes where its
    probability at temperature 1 is at least l times the greatest, else the likeliest token comes.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY

    l: float = 0.5  # noqa: E741 - the paper's letter

    def __post_init__(self) -> None:
        if not 0 < self.l <= 1:
            raise ValueError(f"l is {self.l}: expected more than 0, up to 1")

    def refuses(self, drawn: Drawn, tree: bool) -> str | None:
        return refuses_unless_sampled_chain("lenient", drawn, tree)

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        """Verify a chain of N tokens, `q` [N+1, V]; the test of slot i uses ACCEPT's uniform i."""
        n = len(draft.tokens)
        slots = torch.arange(n, device=q.device)
        p = chain_laws(draft, q)  # [N + 1, V]
        u = send(noise.uniform(Purpose.ACCEPT, n), q.device)
        last = noise.uniform(Purpose.FINAL, 1)[0]

        ratio = q[slots, draft.tokens] / p[slots, draft.tokens]  # NaN (0 / 0) rejects
        a = (u * self.l < ratio).long().cumprod(0).sum()
        token = sample(residual(row(q, a), row(p, a)), last)
        return Verdict(slots.where(slots < a, -1), token, (a + 1).clamp(max=n))

    def relax(self, draft: Draft, q: Tensor, sure: Tensor) -> Tensor:
        """Return one-hot `q` [N+1, V] with each token of the chain that is near to likeliest."""
        if self.l == 1:
            return q
        at = draft.tokens[:, None]
        rows = sure[: len(at)]
        near = rows.gather(1, at) >= self.l * rows.amax(-1, keepdim=True)  # [N, 1]
        drafted = torch.zeros_like(rows).scatter_(1, at, 1.0)
        return torch.cat([torch.where(near, drafted.to(q.dtype), q[: len(at)]), q[len(at) :]])

    def law(self, q: Tensor, p: Tensor) -> Tensor:
        """Return the [..., V] output law of a drafted slot with the laws `q` and `p`."""
        kept = self.kept(q, p)
        leftover = residual(q, p)
        return kept + (1 - kept.sum(-1, keepdim=True)) * leftover / leftover.sum(-1, keepdim=True)

    def kept(self, q: Tensor, p: Tensor) -> Tensor:
        """Return the [..., V] part of the output that the draft provides; its sum: acceptance."""
        return torch.minimum(p, q / self.l)
