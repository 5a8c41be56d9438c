"""Modified rejection sampling (Chen et al. 2023, Algorithm 2 and Theorem 1)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from spsbench.loop.sampling import on_host, residual, row, sample, send
from spsbench.loop.types import Draft, Drawn, Guarantee, Noise, Purpose, Verdict, Verifier
from spsbench.methods.verifiers.tree_tables import shape_of, verdict_at


@dataclass(frozen=True)
class Sps(Verifier):
    """A verifier that keeps x with min(1, q/p) and draws from (q - p)+ at the first rejection."""

    guarantee: ClassVar[Guarantee] = Guarantee.EXACT

    def refuses(self, drawn: Drawn, tree: bool) -> str | None:
        return refuses_unless_sampled_chain("sps", drawn, tree)

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        """Verify a chain of N tokens, `q` [N+1, V]; the test of slot i uses ACCEPT's uniform i."""
        n = len(draft.tokens)
        u = send(noise.uniform(Purpose.ACCEPT, n), q.device)
        last = noise.uniform(Purpose.FINAL, 1)[0]
        ratio = ratios(draft, q)
        if (uniforms := on_host(u)) is not None:
            passed = [tested < r for tested, r in zip(uniforms, ratio.tolist(), strict=True)]
            kept = passed.index(False) if False in passed else n
            left = residual(q[kept], chain_law(draft, kept))
            return verdict_at(shape_of(draft), kept, sample(left, last), min(kept + 1, n))

        slots = torch.arange(n, device=q.device)
        a = (u < ratio).long().cumprod(0).sum()  # the accepted prefix
        token = sample(residual(row(q, a), law_of(draft, a)), last)  # recovered or bonus
        return Verdict(slots.where(slots < a, -1), token, (a + 1).clamp(max=n))


def chain_laws(draft: Draft, q: Tensor) -> Tensor:
    """Return [N+1, V], the laws of a chain's tokens, and a row of zeros for the bonus token."""
    if draft.probs is None:
        return torch.zeros_like(q)  # only an empty draft has no laws here: see `refuses`
    return pad(draft.probs, (0, 0, 0, 1))


def ratios(draft: Draft, q: Tensor) -> Tensor:
    """Return [N] q / p of each token of a chain, p being 0 without laws; NaN for 0 / 0."""
    at = draft.tokens[:, None]
    q_at = q[: len(at)].gather(1, at)
    p_at = torch.zeros_like(q_at) if draft.probs is None else draft.probs.gather(1, at)
    return (q_at / p_at)[:, 0]


def law_of(draft: Draft, slot: Tensor) -> Tensor | None:
    """Return [V], the law of the token in a [] slot of a chain: zeros, or None, after the last."""
    n = len(draft.tokens)
    if draft.probs is None or n == 0:
        return None
    return torch.where(slot < n, row(draft.probs, slot.clamp(max=n - 1)), 0.0)


def chain_law(draft: Draft, slot: int) -> Tensor | None:
    """Return [V], the law of the token in a slot of a chain; None after the last."""
    if draft.probs is None or slot == len(draft.tokens):
        return None
    return draft.probs[slot]


def refuses_unless_sampled_chain(name: str, drawn: Drawn, tree: bool) -> str | None:
    """Return a verifier's reason against all but sampled chains, or None."""
    if tree:
        rule = "match" if drawn is Drawn.POINT else "traversal"
        return f"verifier {name} tests one chain, but the drafter draws trees: use verifier {rule}"
    if drawn is not Drawn.IID:
        return (
            f"verifier {name} divides by the law each token was drawn from, but the drafter's "
            f"tokens come {WHENCE[drawn]}: use verifier match, which is exact for any draft"
        )
    return None


WHENCE = {Drawn.POINT: "by rule and have none", Drawn.DISTINCT: "without replacement"}
