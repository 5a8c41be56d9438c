"""Acceptance rules that are right in the first two slots, and wrong in a later one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from spsbench.loop.sampling import residual, row, sample
from spsbench.loop.types import Draft, Noise, Purpose, Verdict
from spsbench.methods.verifiers.block import Block
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.sps import Sps, chain_laws


@dataclass(frozen=True)
class Reused:
    """A round's noise whose uniforms of one purpose come again after `period` slots."""

    noise: Noise
    purpose: Purpose
    period: int

    def uniform(self, purpose: Purpose, n: int) -> Tensor:
        u = self.noise.uniform(purpose, n)
        return u[torch.arange(n) % self.period] if purpose is self.purpose else u


@dataclass(frozen=True)
class ClampedBonus(Sps):
    """The last token comes from row 2 at most."""

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        verdict = super().__call__(draft, q, noise)
        kept = verdict.path >= 0
        bonus = sample(row(q, kept.sum().clamp(max=2)), noise.uniform(Purpose.FINAL, 1)[0])
        return verdict._replace(token=torch.where(kept.all(), bonus, verdict.token))


@dataclass(frozen=True)
class SpsOfPeriod3(Sps):
    """Slot 3 is tested with the uniform of slot 0."""

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        return super().__call__(draft, q, Reused(noise, Purpose.ACCEPT, 3))


@dataclass(frozen=True)
class MatchOfPeriod4(Match):
    """The target's token after row 4 is drawn with the uniform of row 0."""

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        return super().__call__(draft, q, Reused(noise, Purpose.PLAIN, 4))


@dataclass(frozen=True)
class BlockOverweight(Block):
    """From the third slot on, a prefix may weigh up to 1.05."""

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        n = len(draft.tokens)
        slots = torch.arange(n, device=q.device)
        p = chain_laws(draft, q)
        u, last = noise.uniform(Purpose.ACCEPT, n), noise.uniform(Purpose.FINAL, 1)[0]
        ratio = (q[slots, draft.tokens] / p[slots, draft.tokens]).nan_to_num(0.0)
        weights = [q.new_ones(())]
        for i in range(n):
            weights.append((weights[-1] * ratio[i]).clamp(max=1.0 if i < 2 else 1.05))
        weight = torch.stack(weights)
        excess = (weight[:, None] * q - p).clamp(min=0).sum(-1)
        space = excess + 1 - weight
        h = torch.where(space > 0, excess / space, 1.0)
        h[n] = weight[n]
        passed = torch.cat([h[:1] >= 0, u < h[1:]])
        a = torch.where(passed, torch.arange(n + 1, device=q.device), 0).amax()
        token = sample(residual(row(weight, a) * row(q, a), row(p, a)), last)
        return Verdict(slots.where(slots < a, -1), token, torch.full_like(a, -1))


LATE_FAULTS = {
    "the bonus token comes from row 2 at most": ("sps", ClampedBonus()),
    "uniforms come again after 3 slots": ("sps", SpsOfPeriod3()),
    "uniforms come again after 4 rows": ("match", MatchOfPeriod4()),
    "block's weights go up to 1.05 from the third slot": ("block", BlockOverweight()),
}
"""What is planted: the rule whose thresholds it should have, and the rule."""
